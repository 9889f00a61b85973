//! Reads usage and condition of a share in use. All calls on the share are made on another thread, because a server that
//! doesn't answer keeps each of them waiting.

use std::time::Duration;

use crust_blockfs::usage::{Usage, UsageError, read_usage};
use crust_nfs::Share;
use crust_state::record::VolumeRecord;
use rustix::io::Errno;

use super::error::Cause;
use super::health::{Symptom, check_reading};
use super::server_wait::run_with_timeout;
use super::volume_mounts;

/// The time for which a server may take to answer. It is shorter than the timeouts of the callers of `stats`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A call on the share that failed.
type FailedCall = (&'static str, Errno);

/// The usage, or the call that failed. `None` if the share isn't mounted for a live user.
type ShareAnswer = Option<Result<Usage, FailedCall>>;

/// Reads the usage of a share, and looks for symptoms. Waits for the server for at most five seconds.
pub(super) fn read<'a>(
    record: &VolumeRecord,
    share: &'a Share,
) -> Result<(Option<Usage>, Vec<Symptom<'a>>), Cause> {
    let asked = record.clone();
    let answer = run_with_timeout(ANSWER_TIMEOUT, move || ask(&asked))?;
    let group = record.refused_fs_group;
    let mut symptoms: Vec<_> = group
        .map(|group| Symptom::RefusedFsGroup { share, group })
        .into_iter()
        .collect();
    let usage = match answer {
        Some(None) => return Err(Cause::NotInUse),
        Some(Some(Ok(usage))) => Some(usage),
        Some(Some(Err((call, errno)))) => {
            symptoms.push(Symptom::ShareFailed { share, call, errno });
            None
        }
        None => {
            let timeout = ANSWER_TIMEOUT;
            symptoms.push(Symptom::NoAnswer { share, timeout });
            None
        }
    };
    Ok((usage, symptoms))
}

fn ask(record: &VolumeRecord) -> ShareAnswer {
    let mounted = volume_mounts::find(record).next()?;
    let usage = read_usage(&mounted.root).map_err(|UsageError::Statfs(errno)| ("fstatfs", errno));
    // The client answers fstatfs(2) from its cache for a moment.
    Some(usage.and_then(|usage| check_reading(&mounted.root).map(|()| usage)))
}
