//! Unstages volumes: `RuntimeUnstageVolume` (KEP-2857, "Runtime API").

use crust_blockfs::DeviceNumber;
use crust_blockfs::device::Device;
use crust_state::crust::EntryError;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Process, TargetPath};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::locked_paths::{LockedPaths, PathsState, own_paths};
use super::progress;
use super::users::check_no_live_user;

/// Unstages the volume at a directory, by whichever path it was staged. Succeeds if nothing is staged there, and fails
/// if the volume has a live user.
///
/// Waits until the context's deadline for the kernel to release the device, because the mounts of a killed process end
/// shortly after the process. A device that another pod uses isn't waited for.
pub fn unstage(context: &Context<'_>, target: &TargetPath) -> Result<(), VolumeError> {
    let unstaged = context.with_locked_paths(target, |locked| try_unstage(context, &locked));
    unstaged.map_err(|cause| VolumeError::new(target, cause))
}

fn try_unstage(context: &Context<'_>, locked: &LockedPaths) -> Result<PathsState, Cause> {
    let target = &locked.paths.target;
    let mut devices = owned_devices(context, target)?;
    for path in own_paths(context, &locked.paths) {
        match context.crust.record(path) {
            Ok(Some(record)) => check_no_live_user(record)?,
            Ok(None) => {}
            // The users are unknown, but a device that isn't busy has no users.
            Err(EntryError::Record { .. }) => devices.extend(staged_device(context, target)),
            Err(error) => return Err(error.into()),
        }
    }
    for device in &devices {
        wait_until_free(context, target, *device)?;
    }
    context.crust.unstage(&locked.requested)?;
    let _owners_lock = context.state.lock(LockName::Owners, context.deadline)?;
    for device in devices {
        context.state.remove_device_volume(device, target)?;
    }
    Ok(PathsState::MayBeUnstaged)
}

/// Returns the devices that the volume has been mounted from since it was staged.
pub(super) fn owned_devices(
    context: &Context<'_>,
    target: &TargetPath,
) -> Result<Vec<DeviceNumber>, Cause> {
    let mut devices = context.state.devices_with_volumes()?;
    devices.retain(|device| match context.state.volumes_on_device(*device) {
        Ok(volumes) => volumes.contains(target),
        Err(error) => {
            tracing::warn!("{error}");
            staged_device(context, target) == Some(*device)
        }
    });
    Ok(devices)
}

/// Returns the staged device; `None` if the entry can't be read or the device can't be opened.
fn staged_device(context: &Context<'_>, target: &TargetPath) -> Option<DeviceNumber> {
    let volume = context.crust.volume(target).ok()??;
    let device = Device::open(&volume.info().device).ok()?;
    Some(device.number())
}

fn wait_until_free(
    context: &Context<'_>,
    target: &TargetPath,
    device: DeviceNumber,
) -> Result<(), Cause> {
    // A device that has been detached isn't in use.
    let Some(opened) = Device::find_by_number(device)? else {
        return Ok(());
    };
    let mut wait = progress::DeviceWait::new(target, &opened);
    let free = context.deadline.poll(|| {
        // Locked, because the check opens the device exclusively for a moment, which would make a mount fail.
        let _lock = context
            .state
            .lock(LockName::Device(device), context.deadline)?;
        let is_free = is_shared(context, target, device)? || !opened.is_held_exclusively()?;
        if !is_free {
            wait.report();
        }
        Ok::<_, Cause>(is_free.then_some(()))
    })?;
    free.ok_or_else(|| Cause::DeviceBusy {
        device: opened.path().display().to_string(),
    })
}

/// Describes the holder of a device of a volume without live recorded users; `None` if the device isn't held, or only
/// by users of other volumes.
///
/// `lock` takes a lock without waiting. It returns `None` if the caller may not create the lock's file.
pub(super) fn device_holder(
    context: &Context<'_>,
    target: &TargetPath,
    number: DeviceNumber,
    lock: impl FnOnce(LockName) -> Result<Option<Lock>, LockError>,
) -> Result<Option<String>, Cause> {
    let Some(device) = Device::find_by_number(number)? else {
        return Ok(None);
    };
    // The check opens the device exclusively, as in `wait_until_free`. The holder of the lock may be mounting.
    let _lock = match lock(LockName::Device(number)) {
        Err(LockError::Held { holder, .. }) => {
            return Ok(Some(format!("the lock of its device is held by {holder}")));
        }
        lock => lock?,
    };
    if has_other_live_users(context, target, number)? || !device.is_held_exclusively()? {
        return Ok(None);
    }
    let device = device.path().display().to_string();
    Ok(Some(Cause::DeviceBusy { device }.to_string()))
}

/// Returns true if another volume on the device has live users. Takes the owners' lock.
fn is_shared(
    context: &Context<'_>,
    target: &TargetPath,
    device: DeviceNumber,
) -> Result<bool, Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    has_other_live_users(context, target, device)
}

/// Returns true if another volume on the device has live users. Without the owners' lock, the result may be outdated.
fn has_other_live_users(
    context: &Context<'_>,
    target: &TargetPath,
    device: DeviceNumber,
) -> Result<bool, Cause> {
    let volumes = context.state.volumes_on_device(device)?;
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
