//! Stages volumes: `RuntimeStageVolume` (KEP-2857, "Runtime API"), and `RuntimePublishVolume` for a sandbox that is
//! already running (KEP-2857's earlier draft).

use std::time::Duration;

use crust_blockfs::{Deadline, openat2};
use crust_state::crust::{EntryError, EntryUsage, Staging};
use crust_state::info::VolumeType;
use crust_state::lock::{LockError, LockName};
use crust_state::{MountInfo, TargetPath, Volume};
use rustix::fs::ResolveFlags;

use super::context::{Context, LockedVolume};
use super::difference::{differences, differences_in_use};
use super::ensure::{SandboxRequest, try_ensure_mounted};
use super::error::{Cause, StagingError, VolumeError};
use super::locked_paths::{LockedPaths, PathsState, own_paths};
use super::plan::{self, MountPlan};
use super::server_wait::Watchdog;
use super::staging_checks::{self, GrowthLimiter};
use super::target_index;
use super::users::{check_no_live_user, live_record, may_have_users};
use crust_blockfs::options;

/// Stages a volume at a target path.
///
/// Staging metadata with the same meaning again changes nothing, even if the volume is in use. Other metadata replaces
/// the present one, unless the volume is in use. Everything that can be checked without a mount is checked: the device,
/// the file system type, the options and the group.
///
/// A directory has at most one volume, by whichever path it is named. If a volume is staged there by another path
/// already, that volume is staged again and keeps its target path.
///
/// With a `limiter`, the volume is staged for a caller of a socket. Then the target path must be below certain
/// directories and bare, and the limiter may refuse the growth of the crust directory.
pub fn stage(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    limiter: Option<GrowthLimiter<'_>>,
) -> Result<(), VolumeError> {
    let staged = validated(context, target, info).and_then(|info| {
        context.with_locked_paths(target, |locked| {
            try_stage(context, &locked, &info, limiter)?.commit()?;
            Ok(locked.state_after_stage())
        })
    });
    staged.map_err(|cause| VolumeError::new(target, cause))
}

/// Stages a volume that isn't staged yet, without waiting for a disk, a file server or a lock.
///
/// Returns `None`, and has done nothing, if it might have to wait or the volume is staged already. With `may_wait`, the
/// target directory and the crust directory may be read, which can wait for a disk.
pub fn stage_without_waiting(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    limiter: GrowthLimiter<'_>,
    may_wait: bool,
) -> Option<Result<(), VolumeError>> {
    if !(context.crust.is_in_memory() && context.state.is_in_memory()) {
        return None;
    }
    match info.volume_type {
        VolumeType::Block => {
            openat2::open_cached(&*info.device, ResolveFlags::empty()).ok()?;
        }
        // The kernel may have to load the module of its NFS client.
        VolumeType::Network if !may_wait => return None,
        VolumeType::Network => {}
    }
    let lookup = target.look_up_cached()?;
    if !may_wait && !staging_checks::is_acceptable_without_waiting(context, &lookup) {
        return None;
    }
    let staged = || -> Result<_, Cause> {
        let info = with_checked_source(context, validated(context, target, info)?)?;
        let name = LockName::Volume(target.digest());
        let _lock = context.state.lock(name, Deadline::after(Duration::ZERO))?;
        if context.crust.has_entry(target)? {
            return Ok(None);
        }
        if may_wait {
            staging_checks::check(context, &lookup)?;
        }
        let growth = EntryUsage {
            entries: 1,
            bytes: staging_checks::size(&info),
        };
        limiter(growth, may_wait.then_some(context.crust))?;
        target_index::add_without_waiting(context, &lookup)?;
        let staging = context.crust.begin_stage_at(&lookup, &info)?;
        Ok(Some(staging.commit()?))
    };
    let staged = staged();
    if staged.is_err() {
        context.retire_unless_staged(target);
    }
    match staged {
        Ok(staged) => staged.map(Ok),
        Err(Cause::Lock(LockError::Held { .. }) | Cause::Staging(StagingError::WouldWait)) => None,
        Err(cause) => Some(Err(VolumeError::new(target, cause))),
    }
}

/// Returns the metadata to stage, after all checks that need no device.
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
    // Rejects options that may contain a secret, before a later error shows the options.
    plan::mount_options(context.config, &info)?;
    Ok(info)
}

/// Checks the source of [`validated`] metadata, without asking a server. Returns the metadata to write, with the disk's
/// sequence number and without options that have no effect on a mount.
fn with_checked_source(context: &Context<'_>, info: MountInfo) -> Result<MountInfo, Cause> {
    let plan = MountPlan::new(context.config, &info, None)?;
    plan.source.check_supported(&info.fstype)?;
    Ok(MountInfo {
        disk_seq: plan.source.disk_seq()?,
        options: options::for_storage(&info.options)?,
        ..info
    })
}

/// Stages a volume whose paths are locked, unless that would replace a volume in use. The caller commits the staging or
/// rolls it back.
pub(super) fn try_stage<'a>(
    context: &Context<'a>,
    locked: &LockedPaths,
    info: &MountInfo,
    limiter: Option<GrowthLimiter<'_>>,
) -> Result<Staging<'a>, Cause> {
    let target = &locked.paths.target;
    let info = &MountInfo {
        target_path: Some(target.clone()),
        ..info.clone()
    };
    let lookup = target.look_up();
    let present = match context.crust.volume(target) {
        Ok(None) | Err(EntryError::HalfStaged { .. }) => context.crust.volume_by_any_entry(&lookup),
        present => present,
    };
    let before = describe_entry(&present);
    if let Some(present) = readable_volume(&present)
        && is_in_use_as(context, present, info)?
    {
        // The device isn't checked: the users have the disk open, and its path may be gone.
        return Ok(context.crust.begin_stage_at(&lookup, present.info())?);
    }
    let info = with_checked_source(context, info.clone())?;
    if readable_volume(&present).is_none() {
        for path in own_paths(context, &locked.paths) {
            context
                .crust
                .record(path)?
                .map_or(Ok(()), check_no_live_user)?;
        }
    }
    let is_unchanged =
        readable_volume(&present).is_some_and(|present| has_same_meaning(context, present, &info));
    if let Some(limiter) = limiter.filter(|_| !is_unchanged) {
        staging_checks::check_both(context, [&lookup, &locked.requested.look_up()])?;
        staging_checks::reserve_growth(context, limiter, &lookup, &present, &info)?;
    }
    if let Some(before) = before.filter(|_| !is_unchanged) {
        tracing::warn!(
            volume = %target,
            "replaced the metadata of a volume that isn't in use: it was {before}; it is {info}"
        );
    }
    target_index::add(context, &lookup, context.deadline)?;
    Ok(context.crust.begin_stage_at(&lookup, &info)?)
}

/// Checks a volume that another program is about to stage for a caller of a socket, as [`stage`] does for such a
/// caller. A volume that is staged already with the same meaning is always accepted.
///
/// A device that can't be opened isn't an error here: the other program reports it.
pub fn check_staging(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    limiter: GrowthLimiter<'_>,
) -> Result<(), VolumeError> {
    let requested = target;
    let target = &context.staged_target(requested);
    let checked = || -> Result<(), Cause> {
        let present = context.crust.volume(target);
        if is_staged_as(context, &present, info)? {
            return Ok(());
        }
        let lookup = target.look_up();
        staging_checks::check_both(context, [&lookup, &requested.look_up()])?;
        Ok(staging_checks::reserve_growth(
            context, limiter, &lookup, &present, info,
        )?)
    };
    checked().map_err(|cause| VolumeError::new(requested, cause))
}

/// Returns true if a stage would change nothing, because the volume is staged or in use with the same meaning. Fails if
/// it is in use with another meaning.
pub(super) fn is_staged_as(
    context: &Context<'_>,
    present: &Result<Option<Volume>, EntryError>,
    requested: &MountInfo,
) -> Result<bool, Cause> {
    let Some(present) = readable_volume(present) else {
        return Ok(false);
    };
    if is_in_use_as(context, present, requested)? {
        return Ok(true);
    }
    let requested = with_checked_source(context, requested.clone());
    Ok(requested.is_ok_and(|requested| has_same_meaning(context, present, &requested)))
}

/// Returns the present volume if its metadata can be compared. An unreadable entry has no metadata, and a volume in
/// Kata's layout is another volume with users and a record of its own.
fn readable_volume(present: &Result<Option<Volume>, EntryError>) -> Option<&Volume> {
    let present = present.as_ref().ok()?.as_ref();
    present.filter(|present| !present.is_kata_layout())
}

fn has_same_meaning(context: &Context<'_>, present: &Volume, requested: &MountInfo) -> bool {
    differences(context.config, present.info(), requested).is_empty()
}

/// Describes the entry that a stage replaces; `None` if it replaces none. A stage keeps an entry in Kata's layout.
fn describe_entry(present: &Result<Option<Volume>, EntryError>) -> Option<String> {
    match present {
        Ok(Some(present)) if !present.is_kata_layout() => Some(present.info().to_string()),
        Ok(_) => None,
        Err(error) => Some(format!("an entry that can't be used ({error})")),
    }
}

/// Returns true if a volume is in use with the requested meaning, and false if it isn't in use. Fails if it is in use
/// with another meaning.
fn is_in_use_as(
    context: &Context<'_>,
    present: &Volume,
    requested: &MountInfo,
) -> Result<bool, Cause> {
    let (config, staged) = (context.config, present.info());
    let record = match live_record(present) {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(false),
        // The users are unknown and may be alive.
        Err(_) if differences_in_use(config, staged, None, requested).is_empty() => {
            return Ok(true);
        }
        Err(cause) => return Err(cause),
    };
    let differences = differences_in_use(config, staged, Some(&record.backing), requested);
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

/// Stages a volume and mounts it in a running sandbox. If the mount fails, the metadata and the pending resize that
/// were staged before are restored.
///
/// If a file server doesn't answer by the deadline, `report_timeout` gets the error, and returns the exit code with
/// which the process ends. The metadata stays staged then, as after a crash.
pub fn stage_and_mount(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    request: SandboxRequest<'_>,
    report_timeout: fn(VolumeError) -> i32,
) -> Result<(), VolumeError> {
    let mounted = validated(context, target, info).and_then(|info| {
        context.with_locked_paths(target, |locked| {
            mount(context, locked, &info, request, report_timeout)
        })
    });
    mounted.map_err(|cause| VolumeError::new(target, cause))
}

fn mount(
    context: &Context<'_>,
    locked: LockedPaths,
    info: &MountInfo,
    request: SandboxRequest<'_>,
    report_timeout: fn(VolumeError) -> i32,
) -> Result<PathsState, Cause> {
    let state = locked.state_after_stage();
    let staging = try_stage(context, &locked, info, None)?;
    let target = &locked.paths.target;
    let volume = match context.crust.volume(target) {
        Ok(Some(volume)) => volume,
        unreadable => {
            roll_back(&staging, target);
            unreadable?;
            return Err(Cause::NotStaged(target.clone()));
        }
    };
    let locked = LockedVolume {
        volume,
        _locks: locked.locks,
    };
    let _watchdog = Watchdog::start(context, &locked.volume, report_timeout)?;
    if let Err(cause) = try_ensure_mounted(context, &locked, request) {
        // If the volume has users, it is mounted and only the record couldn't be written: the metadata must stay.
        if !may_have_users(&locked.volume) {
            roll_back(&staging, target);
        }
        return Err(cause);
    }
    staging.commit()?;
    Ok(state)
}

/// Rolls a staging back. An error is logged, because the caller returns the error of the mount.
fn roll_back(staging: &Staging<'_>, target: &TargetPath) {
    if let Err(error) = staging.roll_back() {
        tracing::warn!(volume = %target, "failed to restore the metadata that was staged before: {error}");
    }
}
