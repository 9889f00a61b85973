//! Reads usage and condition of a share in use. A server that doesn't answer keeps every call on the share waiting, so all
//! of them are made on a thread that isn't waited for.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crust_blockfs::usage::{Usage, UsageError, read_usage};
use crust_nfs::Share;
use crust_state::record::VolumeRecord;
use rustix::io::Errno;

use super::error::Cause;
use super::health::{Symptom, check_reading};
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
    let (sender, answer) = mpsc::channel();
    let record = record.clone();
    let started = std::thread::Builder::new().spawn(move || {
        // The receiver is gone if the answer comes too late.
        let _ = sender.send(ask(&record));
    });
    started.map_err(|error| Cause::Call {
        call: "clone".to_owned(),
        errno: crust_blockfs::errno::from_io_error(&error),
    })?;
    match answer.recv_timeout(ANSWER_TIMEOUT) {
        Ok(None) | Err(RecvTimeoutError::Disconnected) => Err(Cause::NotInUse),
        Ok(Some(Ok(usage))) => Ok((Some(usage), Vec::new())),
        Ok(Some(Err((call, errno)))) => {
            Ok((None, vec![Symptom::ShareFailed { share, call, errno }]))
        }
        Err(RecvTimeoutError::Timeout) => {
            let timeout = ANSWER_TIMEOUT;
            Ok((None, vec![Symptom::NoAnswer { share, timeout }]))
        }
    }
}

fn ask(record: &VolumeRecord) -> ShareAnswer {
    let mounted = volume_mounts::find(record).next()?;
    let usage = read_usage(&mounted.root).map_err(|UsageError::Statfs(errno)| ("fstatfs", errno));
    // The client answers fstatfs(2) from its cache for a moment.
    Some(usage.and_then(|usage| check_reading(&mounted.root).map(|()| usage)))
}
