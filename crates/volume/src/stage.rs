//! Staging: what `RuntimeStageVolume` comes to (KEP-2857, "Runtime API"), and the stage of a volume for a sandbox that
//! already runs (KEP-2857's earlier draft).

use std::time::Duration;

use crust_blockfs::{Deadline, openat2};
use crust_state::crust::{EntryError, EntryUsage, Staging};
use crust_state::lock::{LockError, LockName};
use crust_state::{MountInfo, TargetPath, Volume};
use rustix::fs::ResolveFlags;

use super::admission::{self, GrowthLimiter};
use super::context::{Context, LockedVolume};
use super::difference::{differences, differences_in_use};
use super::ensure::{SandboxRequest, try_ensure_mounted};
use super::error::{AdmissionError, Cause, VolumeError};
use super::locked_paths::{LockedPaths, PathsState, own_paths};
use super::plan::{self, MountPlan};
use super::target_index;
use super::users::{check_no_live_user, has_users, live_record};
use crust_blockfs::options;

/// Stages a volume at a target path. The same content again, judged by meaning, changes nothing even
/// when the volume is in use; other content replaces what is there unless it is in use.
///
/// Everything that can be checked without mounting is: the device, the file system's name, the
/// options, the group.
///
/// A directory holds one volume, by whichever path it is named: where it is staged by another path already, that
/// volume is staged again, and keeps its target path.
///
/// With `room` it is staged for a caller of a socket, who may not stage everything (see [`GrowthLimiter`]).
pub fn stage(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    room: Option<GrowthLimiter<'_>>,
) -> Result<(), VolumeError> {
    let staged = validated(context, target, info).and_then(|info| {
        context.with_locked_paths(target, |claim| {
            try_stage(context, &claim, &info, room)?.commit()?;
            Ok(claim.state_after_stage())
        })
    });
    staged.map_err(|cause| VolumeError::new(target, cause))
}

/// The same of a volume that isn't staged yet, where that waits for nothing: not for a disk, nor a file server, nor
/// whoever has the lock. `None` where it might; then nothing was done. A caller that `may_wait` for the look at
/// what is at the target path says so.
pub fn stage_without_waiting(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    room: GrowthLimiter<'_>,
    may_wait: bool,
) -> Option<Result<(), VolumeError>> {
    if !(context.crust.is_in_memory() && context.state.is_in_memory()) {
        return None;
    }
    openat2::open_cached(&*info.device, ResolveFlags::empty()).ok()?;
    let look = target.look_up_cached()?;
    if !may_wait && !admission::is_acceptable_without_waiting(context, &look) {
        return None;
    }
    let staged = || -> Result<_, Cause> {
        let info = checked(context, validated(context, target, info)?)?;
        let name = LockName::Volume(target.digest());
        let _lock = context.state.lock(name, Deadline::after(Duration::ZERO))?;
        if context.crust.has_entry(target)? {
            return Ok(None);
        }
        if may_wait {
            admission::check(context, &look)?;
        }
        let new = EntryUsage {
            entries: 1,
            bytes: admission::size(&info),
        };
        room(new, may_wait.then_some(context.crust))?;
        target_index::add_at_once(context, &look)?;
        let staging = context.crust.begin_stage_at(&look, &info)?;
        Ok(Some(staging.commit()?))
    };
    let staged = staged();
    if staged.is_err() {
        context.retire_unless_staged(target);
    }
    match staged {
        Ok(staged) => staged.map(Ok),
        Err(Cause::Lock(LockError::Held { .. }) | Cause::Admission(AdmissionError::WouldWait)) => {
            None
        }
        Err(cause) => Some(Err(VolumeError::new(target, cause))),
    }
}

/// Returns what is to be staged, with everything checked that takes no device.
pub(super) fn validated(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
) -> Result<MountInfo, Cause> {
    let info = MountInfo {
        target_path: Some(target.clone()),
        ..info.clone()
    };
    info.validate()?;
    plan::check(context.config, &info)?;
    // Also so that no refusal shows an option that is a secret.
    plan::mount_options(context.config, &info)?;
    Ok(info)
}

/// Checks the device of what was [`validated`], and returns what is to be written: with the number of the
/// disk that the device is, and without the options that no mount takes.
fn checked(context: &Context<'_>, info: MountInfo) -> Result<MountInfo, Cause> {
    let plan = MountPlan::new(context.config, &info, None)?;
    Ok(MountInfo {
        disk_seq: plan.device.disk_seq()?,
        options: options::for_storage(&info.options)?,
        ..info
    })
}

/// Stages a claimed volume, to be kept or taken back, unless somebody uses what it would replace.
pub(super) fn try_stage<'a>(
    context: &Context<'a>,
    claim: &LockedPaths,
    info: &MountInfo,
    room: Option<GrowthLimiter<'_>>,
) -> Result<Staging<'a>, Cause> {
    let target = &claim.paths.target;
    let info = &MountInfo {
        target_path: Some(target.clone()),
        ..info.clone()
    };
    let look = target.look_up();
    let there = match context.crust.volume(target) {
        Ok(None) | Err(EntryError::HalfStaged { .. }) => context.crust.volume_by_any_entry(&look),
        there => there,
    };
    let before = describe_entry(&there);
    if let Some(there) = readable(&there)
        && is_used_as(context, there, info)?
    {
        // Its users have the disk that it was staged on, and need no path to it any more.
        return Ok(context.crust.begin_stage_at(&look, there.info())?);
    }
    let info = checked(context, info.clone())?;
    if readable(&there).is_none() {
        for path in own_paths(context, &claim.paths) {
            context
                .crust
                .record(path)?
                .map_or(Ok(()), check_no_live_user)?;
        }
    }
    let is_again = readable(&there).is_some_and(|there| means(context, there, &info));
    if let Some(room) = room.filter(|_| !is_again) {
        admission::check_both(context, [&look, &claim.requested.look_up()])?;
        admission::reserve_growth(context, room, &look, &there, &info)?;
    }
    if let Some(before) = before.filter(|_| !is_again) {
        tracing::warn!(volume = %target, "what was staged and isn't in use is replaced: it was {before}; it is {info}");
    }
    target_index::add(context, &look, context.deadline)?;
    Ok(context.crust.begin_stage_at(&look, &info)?)
}

/// Checks what another program is about to stage for a caller of a socket, as [`stage`] checks
/// what it stages for one. Only a volume that is staged already with content of the same meaning needs no check.
///
/// A device that can't be opened is left for the other program to report.
pub fn check_admission(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    room: GrowthLimiter<'_>,
) -> Result<(), VolumeError> {
    let asked = target;
    let target = &context.staged_target(asked);
    let admitted = || -> Result<(), Cause> {
        let there = context.crust.volume(target);
        if is_staged_as(context, &there, info)? {
            return Ok(());
        }
        let look = target.look_up();
        admission::check_both(context, [&look, &asked.look_up()])?;
        Ok(admission::reserve_growth(
            context, room, &look, &there, info,
        )?)
    };
    admitted().map_err(|cause| VolumeError::new(asked, cause))
}

/// Returns true if a volume with the same meaning is staged already, or is in use as `asked`, so that a stage changes
/// nothing. A volume that is in use with another meaning is an error.
pub(super) fn is_staged_as(
    context: &Context<'_>,
    there: &Result<Option<Volume>, EntryError>,
    asked: &MountInfo,
) -> Result<bool, Cause> {
    let Some(there) = readable(there) else {
        return Ok(false);
    };
    if is_used_as(context, there, asked)? {
        return Ok(true);
    }
    let asked = checked(context, asked.clone());
    Ok(asked.is_ok_and(|asked| means(context, there, &asked)))
}

/// Returns the volume whose content a user could rely on. An entry that can't be read has none. Nor is what a driver
/// staged for Kata the same: users of that have their record there.
fn readable(there: &Result<Option<Volume>, EntryError>) -> Option<&Volume> {
    let there = there.as_ref().ok()?.as_ref();
    there.filter(|there| !there.is_kata_layout())
}

fn means(context: &Context<'_>, there: &Volume, asked: &MountInfo) -> bool {
    differences(context.config, there.info(), asked).is_empty()
}

/// Describes the entry that a stage replaces; `None` if it replaces nothing. An entry of Kata's stays.
fn describe_entry(there: &Result<Option<Volume>, EntryError>) -> Option<String> {
    match there {
        Ok(Some(there)) if !there.is_kata_layout() => Some(there.info().to_string()),
        Ok(_) => None,
        Err(error) => Some(format!("an entry that can't be used ({error})")),
    }
}

/// Returns true for a volume that is in use as what is asked for, and false for one that isn't in use.
/// In use as something else is an error.
fn is_used_as(context: &Context<'_>, there: &Volume, asked: &MountInfo) -> Result<bool, Cause> {
    let (config, staged) = (context.config, there.info());
    let record = match live_record(there) {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(false),
        // Its users aren't known, and may be live.
        Err(_) if differences_in_use(config, staged, None, asked).is_empty() => return Ok(true),
        Err(cause) => return Err(cause),
    };
    let differences = differences_in_use(config, staged, Some(record.device), asked);
    match record.users.first() {
        Some(user) if !differences.is_empty() => {
            let (user, noun) = (user.to_string(), user.owner_noun());
            Err(Cause::Differs {
                user,
                noun,
                differences,
            })
        }
        _ => Ok(true),
    }
}

/// Stages a volume and mounts it in a sandbox that runs. Where that fails, what was staged before
/// is again, with the growth that waits for its mount.
pub fn stage_and_mount(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    host: SandboxRequest<'_>,
) -> Result<(), VolumeError> {
    let mounted = validated(context, target, info).and_then(|info| {
        context.with_locked_paths(target, |claim| mount(context, claim, &info, host))
    });
    mounted.map_err(|cause| VolumeError::new(target, cause))
}

fn mount(
    context: &Context<'_>,
    claim: LockedPaths,
    info: &MountInfo,
    host: SandboxRequest<'_>,
) -> Result<PathsState, Cause> {
    let left = claim.state_after_stage();
    let staging = try_stage(context, &claim, info, None)?;
    let target = &claim.paths.target;
    let volume = match context.crust.volume(target) {
        Ok(Some(volume)) => volume,
        unreadable => {
            take_back(&staging, target);
            unreadable?;
            return Err(Cause::NotStaged(target.clone()));
        }
    };
    let locked = LockedVolume {
        volume,
        _locks: claim.locks,
    };
    if let Err(cause) = try_ensure_mounted(context, &locked, host) {
        // Mounted all the same, and not written down: what is staged is what it has.
        if !has_users(&locked.volume) {
            take_back(&staging, target);
        }
        return Err(cause);
    }
    staging.commit()?;
    Ok(left)
}

/// The error that is told is why; this one is for the log.
fn take_back(staging: &Staging<'_>, target: &TargetPath) {
    if let Err(error) = staging.roll_back() {
        tracing::warn!(volume = %target, "what was staged before isn't again: {error}");
    }
}
