//! How full a volume is, and how it fares (KEP-2857: `RuntimeGetVolumeStats`).

use crust_state::{Process, TargetPath};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::health::{self, Condition};
use super::mounted;
use crust_blockfs::usage::{Usage, usage};

/// Usage and condition of a volume in use.
#[derive(Debug)]
pub struct Stats {
    /// Bytes and inodes; `None` where the file system doesn't tell any more.
    pub usage: Option<Usage>,
    /// Whether all is well.
    pub condition: Condition,
}

/// Looks at a volume where it is mounted: in a live sandbox, or in a live container whose sandbox
/// has ended. The file system is kept busy no longer than that.
pub fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Stats, VolumeError> {
    look(context, target).map_err(|cause| VolumeError::new(target, cause))
}

fn look(context: &Context<'_>, target: &TargetPath) -> Result<Stats, Cause> {
    let Some(volume) = context.crust.volume(&context.as_given(target))? else {
        return Err(Cause::NotStaged(target.clone()));
    };
    let mut record = volume.record()?.ok_or(Cause::NotInUse)?;
    record.retain_live(Process::is_alive);
    let mounted = mounted::places(&record).next();
    let mounted = mounted.ok_or(Cause::NotInUse)?;
    let usage = usage(&mounted.root);
    let answered = usage.as_ref().map(|_| ());
    // One that can't be read fails a create, not a look.
    let not_grown = volume.failed_resize().ok().flatten();
    let condition = health::condition(
        &record,
        volume.target(),
        &mounted,
        not_grown.as_deref(),
        answered,
    );
    Ok(Stats {
        usage: usage.ok(),
        condition,
    })
}
