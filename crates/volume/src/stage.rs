//! Staging and unstaging: what `RuntimeStageVolume` and `RuntimeUnstageVolume` come to (KEP-2857,
//! "Runtime API").

use std::time::Duration;

use crust_blockfs::{Deadline, DeviceNumber, beneath};
use crust_state::crust::{Amount, EntryError, Paths, Staging};
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::record::VolumeRecord;
use crust_state::{MountInfo, Process, TargetPath, Volume};
use rustix::fs::ResolveFlags;

use super::acquire::live_record;
use super::admission::{self, Denied, Room};
use super::claim::{Claim, Left};
use super::context::Context;
use super::difference::{differences, differences_in_use};
use super::error::{Cause, VolumeError};
use super::index;
use super::plan::{self, MountPlan};
use crust_blockfs::device::Device;
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
/// With `room` it is staged for a caller of a socket, who may not stage everything (see [`Room`]).
pub fn stage(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    room: Option<Room<'_>>,
) -> Result<(), VolumeError> {
    let staged = validated(context, target, info).and_then(|info| {
        context.with_claim(target, |claim| {
            try_stage(context, &claim, &info, room)?.commit()?;
            Ok(claim.left_by_stage())
        })
    });
    staged.map_err(|cause| VolumeError::new(target, cause))
}

/// The same of a volume that isn't staged yet, where that waits for nothing: not for a disk, nor a file server, nor
/// whoever has the lock. `None` where it might; then nothing was done. A caller that `may_wait` for the look at
/// what is at the target path says so.
pub fn stage_at_once(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    room: Room<'_>,
    may_wait: bool,
) -> Option<Result<(), VolumeError>> {
    if !(context.crust.is_in_memory() && context.state.is_in_memory()) {
        return None;
    }
    beneath::open_at_once(&*info.device, ResolveFlags::empty()).ok()?;
    let look = target.look_at_once()?;
    if !may_wait && !admission::is_fine_at_once(context, &look) {
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
        let new = Amount {
            entries: 1,
            bytes: admission::size(&info),
        };
        room(new, may_wait.then_some(context.crust))?;
        index::add_at_once(context, &look)?;
        let staging = context.crust.try_stage_seen(&look, &info)?;
        Ok(Some(staging.commit()?))
    };
    let staged = staged();
    if staged.is_err() {
        context.retire_unless_staged(target);
    }
    match staged {
        Ok(staged) => staged.map(Ok),
        Err(Cause::Lock(LockError::Held { .. }) | Cause::Denied(Denied::Unknown)) => None,
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
        options: options::stored(&info.options)?,
        ..info
    })
}

/// Stages a claimed volume, to be kept or taken back, unless somebody uses what it would replace.
pub(super) fn try_stage<'a>(
    context: &Context<'a>,
    claim: &Claim,
    info: &MountInfo,
    room: Option<Room<'_>>,
) -> Result<Staging<'a>, Cause> {
    let target = &claim.paths.target;
    let info = &MountInfo {
        target_path: Some(target.clone()),
        ..info.clone()
    };
    let look = target.look();
    let there = match context.crust.volume(target) {
        Ok(None) | Err(EntryError::HalfStaged { .. }) => context.crust.volume_by_any_entry(&look),
        there => there,
    };
    let before = describe_entry(&there);
    if let Some(there) = readable(&there)
        && is_used_as(context, there, info)?
    {
        // Its users have the disk that it was staged on, and need no path to it any more.
        return Ok(context.crust.try_stage_seen(&look, there.info())?);
    }
    let info = checked(context, info.clone())?;
    if readable(&there).is_none() {
        for path in own_paths(context, &claim.paths) {
            context.crust.record(path)?.map_or(Ok(()), in_use)?;
        }
    }
    let is_again = readable(&there).is_some_and(|there| means(context, there, &info));
    if let Some(room) = room.filter(|_| !is_again) {
        admission::check_all(context, [&look, &claim.asked.look()])?;
        admission::take_room(context, room, &look, &there, &info)?;
    }
    if let Some(before) = before.filter(|_| !is_again) {
        tracing::warn!(volume = %target, "what was staged and isn't in use is replaced: it was {before}; it is {info}");
    }
    index::add(context, &look, context.deadline)?;
    Ok(context.crust.try_stage_seen(&look, &info)?)
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

/// Unstages the volume at a directory, by whichever path it was staged. An unknown target path is fine, a volume that a
/// live pod uses is refused.
///
/// Waits, until the context's deadline, for the kernel to let the device go: the mounts of
/// processes that were killed end a moment after them. Where another pod shares the device there
/// is nothing to wait for.
pub fn unstage(context: &Context<'_>, target: &TargetPath) -> Result<(), VolumeError> {
    let unstaged = context.with_claim(target, |claim| try_unstage(context, &claim));
    unstaged.map_err(|cause| VolumeError::new(target, cause))
}

fn try_unstage(context: &Context<'_>, claim: &Claim) -> Result<Left, Cause> {
    let target = &claim.paths.target;
    let mut devices = devices_of(context, target)?;
    for path in own_paths(context, &claim.paths) {
        match context.crust.record(path) {
            Ok(Some(record)) => in_use(record)?,
            Ok(None) => {}
            // Who uses it can't be read any more; whether anybody does, the device tells.
            Err(EntryError::Record { .. }) => devices.extend(staged_device(context, target)),
            Err(error) => return Err(error.into()),
        }
    }
    for device in &devices {
        wait_until_free(context, target, *device)?;
    }
    context.crust.unstage(&claim.asked)?;
    let _owners = context.state.lock(LockName::Owners, context.deadline)?;
    for device in devices {
        context.state.remove_owner(device, target)?;
    }
    Ok(Left::BarePaths)
}

/// Returns the paths of a volume without those that another volume has.
fn own_paths<'p>(context: &Context<'_>, paths: &'p Paths) -> impl Iterator<Item = &'p TargetPath> {
    let target = &paths.target;
    paths
        .iter()
        .filter(move |path| !context.crust.is_anothers(path, target))
}

fn in_use(mut record: VolumeRecord) -> Result<(), Cause> {
    record.retain_live(Process::is_alive);
    match record.users.first() {
        Some(user) => Err(Cause::in_use(user)),
        None => Ok(()),
    }
}

/// The devices that the volume was mounted from since it was staged.
pub(super) fn devices_of(
    context: &Context<'_>,
    target: &TargetPath,
) -> Result<Vec<DeviceNumber>, Cause> {
    let mut devices = context.state.owned_devices()?;
    devices.retain(|device| match context.state.owners_of(*device) {
        Ok(volumes) => volumes.contains(target),
        Err(error) => {
            tracing::warn!("{error}");
            staged_device(context, target) == Some(*device)
        }
    });
    Ok(devices)
}

/// The device that is staged, as far as that can be read.
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
    let Some(opened) = Device::of_number(device)? else {
        return Ok(());
    };
    let free = context.deadline.poll(|| {
        // The look itself takes the device for a moment, which no mount may find taken.
        let _lock = context
            .state
            .lock(LockName::Device(device), context.deadline)?;
        let free = shared(context, target, device)? || !opened.in_use_exclusively()?;
        Ok::<_, Cause>(free.then_some(()))
    })?;
    free.ok_or_else(|| Cause::DeviceBusy {
        device: opened.path().display().to_string(),
    })
}

/// Who has a device although nobody on the volume's record lives, as far as that can be seen at once.
/// `lock` takes a lock at once, or gives `None` where a look may not make one.
pub(super) fn holder(
    context: &Context<'_>,
    target: &TargetPath,
    number: DeviceNumber,
    lock: impl FnOnce(LockName) -> Result<Option<Lock>, LockError>,
) -> Result<Option<String>, Cause> {
    let Some(device) = Device::of_number(number)? else {
        return Ok(None);
    };
    // As above: whoever has this lock may be mounting.
    let _lock = match lock(LockName::Device(number)) {
        Err(LockError::Held { holder, .. }) => {
            return Ok(Some(format!("the lock of its device is held by {holder}")));
        }
        lock => lock?,
    };
    if others_live(context, target, number)? || !device.in_use_exclusively()? {
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

/// The same without the lock, for a look.
fn others_live(
    context: &Context<'_>,
    target: &TargetPath,
    device: DeviceNumber,
) -> Result<bool, Cause> {
    let volumes = context.state.owners_of(device)?;
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
