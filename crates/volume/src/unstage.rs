//! Unstages volumes: `RuntimeUnstageVolume` (KEP-2857, "Runtime API").

use crust_state::crust::EntryError;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{BackingKey, Process, TargetPath};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::locked_paths::{LockedPaths, PathsState, own_paths};
use super::mount_source::{find_device, staged_backing};
use super::progress;
use super::users::check_no_live_user;

/// Unstages the volume at a directory, by whichever path it was staged. Succeeds if nothing is staged there, and fails
/// if the volume has a live user.
///
/// Waits until the context's deadline for the kernel to release the device, because the mounts of a killed process end
/// shortly after the process. Neither a device that another pod uses nor a server is waited for.
pub fn unstage(context: &Context<'_>, target: &TargetPath) -> Result<(), VolumeError> {
    let unstaged = context.with_locked_paths(target, |locked| try_unstage(context, &locked));
    unstaged.map_err(|cause| VolumeError::new(target, cause))
}

fn try_unstage(context: &Context<'_>, locked: &LockedPaths) -> Result<PathsState, Cause> {
    let target = &locked.paths.target;
    let mut backings = owned_backings(context, target)?;
    for path in own_paths(context, &locked.paths) {
        match context.crust.record(path) {
            Ok(Some(record)) => check_no_live_user(record)?,
            Ok(None) => {}
            // The users are unknown, but a device that isn't busy has no users.
            Err(EntryError::Record { .. }) => backings.extend(staged_key(context, target)),
            Err(error) => return Err(error.into()),
        }
    }
    for backing in &backings {
        wait_until_free(context, target, *backing)?;
    }
    context.crust.unstage(&locked.requested)?;
    let _owners_lock = context.state.lock(LockName::Owners, context.deadline)?;
    for backing in backings {
        context.state.remove_volume(backing, target)?;
    }
    Ok(PathsState::MayBeUnstaged)
}

/// Returns the devices and shares that the volume has been mounted from since it was staged.
pub(super) fn owned_backings(
    context: &Context<'_>,
    target: &TargetPath,
) -> Result<Vec<BackingKey>, Cause> {
    let mut backings = context.state.backings_with_volumes()?;
    backings.retain(|backing| match context.state.volumes_on(*backing) {
        Ok(volumes) => volumes.contains(target),
        Err(error) => {
            tracing::warn!("{error}");
            staged_key(context, target) == Some(*backing)
        }
    });
    Ok(backings)
}

/// Returns the staged device or share; `None` if the entry can't be read or the device can't be opened.
fn staged_key(context: &Context<'_>, target: &TargetPath) -> Option<BackingKey> {
    let volume = context.crust.volume(target).ok()??;
    staged_backing(volume.info()).map(|backing| backing.key())
}

fn wait_until_free(
    context: &Context<'_>,
    target: &TargetPath,
    backing: BackingKey,
) -> Result<(), Cause> {
    // A device that has been detached isn't in use.
    let Some(opened) = find_device(backing)? else {
        return Ok(());
    };
    let mut wait = progress::DeviceWait::new(target, &opened);
    let free = context.deadline.poll(|| {
        // Locked, because the check opens the device exclusively for a moment, which would make a mount fail.
        let _lock = context
            .state
            .lock(LockName::Device(opened.number()), context.deadline)?;
        let is_free = is_shared(context, target, backing)? || !opened.is_held_exclusively()?;
        if !is_free {
            wait.report();
        }
        Ok::<_, Cause>(is_free.then_some(()))
    })?;
    free.ok_or_else(|| Cause::DeviceBusy {
        device: opened.path().display().to_string(),
    })
}

/// Describes the holder of the device of a volume without live recorded users; `None` if the device isn't held, or only
/// by users of other volumes, or if the volume is on a share.
///
/// `lock` takes a lock without waiting. It returns `None` if the caller may not create the lock's file.
pub(super) fn device_holder(
    context: &Context<'_>,
    target: &TargetPath,
    backing: BackingKey,
    lock: impl FnOnce(LockName) -> Result<Option<Lock>, LockError>,
) -> Result<Option<String>, Cause> {
    let Some(device) = find_device(backing)? else {
        return Ok(None);
    };
    // The check opens the device exclusively, as in `wait_until_free`. The holder of the lock may be mounting.
    let _lock = match lock(LockName::Device(device.number())) {
        Err(LockError::Held { holder, .. }) => {
            return Ok(Some(format!("the lock of its device is held by {holder}")));
        }
        lock => lock?,
    };
    if has_other_live_users(context, target, backing)? || !device.is_held_exclusively()? {
        return Ok(None);
    }
    let device = device.path().display().to_string();
    Ok(Some(Cause::DeviceBusy { device }.to_string()))
}

/// Returns true if another volume on the device has live users. Takes the owners' lock.
fn is_shared(
    context: &Context<'_>,
    target: &TargetPath,
    backing: BackingKey,
) -> Result<bool, Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    has_other_live_users(context, target, backing)
}

/// Returns true if another volume on the device has live users. Without the owners' lock, the result may be outdated.
fn has_other_live_users(
    context: &Context<'_>,
    target: &TargetPath,
    backing: BackingKey,
) -> Result<bool, Cause> {
    let volumes = context.state.volumes_on(backing)?;
    for other in volumes.iter().filter(|other| *other != target) {
        if let Some(mut record) = context.crust.record(other)? {
            record.retain_live(Process::is_alive);
            if !record.users.is_empty() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
