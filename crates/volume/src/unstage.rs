//! Unstaging: what `RuntimeUnstageVolume` comes to (KEP-2857, "Runtime API").

use crust_blockfs::DeviceNumber;
use crust_blockfs::device::Device;
use crust_state::crust::EntryError;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Process, TargetPath};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::locked_paths::{LockedPaths, PathsState, own_paths};
use super::users::check_no_live_user;

/// Unstages the volume at a directory, by whichever path it was staged. An unknown target path is fine, a volume that a
/// live pod uses is refused.
///
/// Waits, until the context's deadline, for the kernel to let the device go: the mounts of
/// processes that were killed end a moment after them. Where another pod shares the device there
/// is nothing to wait for.
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
            // Who uses it can't be read any more; whether anybody does, the device tells.
            Err(EntryError::Record { .. }) => devices.extend(staged_device(context, target)),
            Err(error) => return Err(error.into()),
        }
    }
    for device in &devices {
        wait_until_free(context, target, *device)?;
    }
    context.crust.unstage(&locked.requested)?;
    let _owners = context.state.lock(LockName::Owners, context.deadline)?;
    for device in devices {
        context.state.remove_device_volume(device, target)?;
    }
    Ok(PathsState::MayBeUnstaged)
}

/// Returns the devices that the volume was mounted from since it was staged.
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

/// Returns the device that is staged; `None` if that can't be read.
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
    // A device that has been detached is nobody's.
    let Some(opened) = Device::find_by_number(device)? else {
        return Ok(());
    };
    let free = context.deadline.poll(|| {
        // The look itself takes the device for a moment, which no mount may find taken.
        let _lock = context
            .state
            .lock(LockName::Device(device), context.deadline)?;
        let free = shared(context, target, device)? || !opened.is_held_exclusively()?;
        Ok::<_, Cause>(free.then_some(()))
    })?;
    free.ok_or_else(|| Cause::DeviceBusy {
        device: opened.path().display().to_string(),
    })
}

/// Returns who holds a device although no user on the volume's record lives, as far as that is known without waiting.
/// `lock` takes a lock without waiting, or returns `None` if the caller may not create one.
pub(super) fn device_holder(
    context: &Context<'_>,
    target: &TargetPath,
    number: DeviceNumber,
    lock: impl FnOnce(LockName) -> Result<Option<Lock>, LockError>,
) -> Result<Option<String>, Cause> {
    let Some(device) = Device::find_by_number(number)? else {
        return Ok(None);
    };
    // As above: whoever has this lock may be mounting.
    let _lock = match lock(LockName::Device(number)) {
        Err(LockError::Held { holder, .. }) => {
            return Ok(Some(format!("the lock of its device is held by {holder}")));
        }
        lock => lock?,
    };
    if others_live(context, target, number)? || !device.is_held_exclusively()? {
        return Ok(None);
    }
    let device = device.path().display().to_string();
    Ok(Some(Cause::DeviceBusy { device }.to_string()))
}

/// Whether another volume on the device has live users.
fn shared(context: &Context<'_>, target: &TargetPath, device: DeviceNumber) -> Result<bool, Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    others_live(context, target, device)
}

/// Whether another volume on the device has live users. Without the lock of the owners the answer may be outdated.
fn others_live(
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
