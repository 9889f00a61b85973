//! Growing a volume (KEP-2857: `RuntimeExpandVolume`): in use, at once; staged, with its mount.

use std::os::fd::OwnedFd;

use crust_blockfs::resize::SizeLimits;
use crust_state::lock::LockName;
use crust_state::record::{UserKind, VolumeRecord};
use crust_state::{Process, TargetPath, Volume, error_message};
use rustix::fs::{Mode, OFlags, openat};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::plan::MountPlan;
use super::volume_mounts::{self, VolumeMount};
use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::filesystem::{self, MountRequest};
use crust_blockfs::options::{FsOption, MountOptions};
use crust_blockfs::resize;

/// Grows a volume as far as its device and the limits allow; its file system's size afterwards.
///
/// Where nobody uses it yet the growth is recorded, in place of an earlier one, and done by the
/// next mount before anybody sees the volume; the size is what it will have then.
pub fn resize(
    context: &Context<'_>,
    target: &TargetPath,
    limits: SizeLimits,
) -> Result<u64, VolumeError> {
    let resized = || -> Result<_, Cause> {
        let Some(locked) = context.lock_volume(target)? else {
            return Err(Cause::NotStaged(target.clone()));
        };
        let volume = &locked.volume;
        if let Some(mut record) = volume.record()? {
            record.retain_live(Process::is_alive);
            if let Some(bytes) = in_use(context, volume, &record, limits)? {
                // One that a mount left behind has been overtaken.
                volume.clear_resize()?;
                return Ok(bytes);
            }
        }
        later(context, volume, limits)
    };
    resized().map_err(|cause| VolumeError::new(target, cause))
}

/// `None` when it isn't mounted for anybody.
fn in_use(
    context: &Context<'_>,
    volume: &Volume,
    record: &VolumeRecord,
    limits: SizeLimits,
) -> Result<Option<u64>, Cause> {
    let mut places = volume_mounts::find(record).peekable();
    if places.peek().is_none() {
        // A sandbox's create that was killed leaves a live sandbox without the volume; containers
        // have it, even where it isn't found.
        let only_sandboxes = record
            .users
            .iter()
            .all(|user| user.kind == UserKind::Sandbox);
        return if only_sandboxes {
            Ok(None)
        } else {
            Err(Cause::NotInUse)
        };
    }
    if record.superblock.read_only {
        return Err(Cause::ReadOnly);
    }
    let device = Device::find_by_number(record.device)?.ok_or(Cause::DeviceGone(record.device))?;
    let device = DeviceFacts::from(device);
    let _device = context
        .state
        .lock(LockName::Device(record.device), context.deadline)?;
    let root = match places.find(VolumeMount::is_writable) {
        Some(place) => place.open().map_err(|errno| Cause::Call {
            call: format!("open({})", place.mount.mount_point.display()),
            errno,
        })?,
        None => root_of(&own_mount(record, &device)?)?,
    };
    let fstype = &record.superblock.fstype;
    let bytes = resize::grow(&root, &device, fstype, limits)?;
    tracing::info!(volume = %volume.target(), bytes, "grown");
    Ok(Some(bytes))
}

fn later(context: &Context<'_>, volume: &Volume, limits: SizeLimits) -> Result<u64, Cause> {
    let plan = MountPlan::new(context.config, volume.info(), None)?;
    if plan.superblock.read_only {
        return Err(Cause::ReadOnly);
    }
    let bytes = resize::predict_size(&plan.device, &plan.superblock.fstype, limits)?;
    volume.record_resize(limits)?;
    Ok(bytes)
}

/// Carries out the recorded growth, on a mount that nobody sees yet. A failure doesn't keep the pod from
/// starting: it is logged and recorded, [`stats`](super::stats()) reports it, and the next mount tries
/// again.
pub(super) fn carry_out(volume: &Volume, plan: &MountPlan, mount: &OwnedFd) -> Result<(), Cause> {
    let Some(limits) = volume.pending_resize()? else {
        return Ok(());
    };
    if plan.superblock.read_only {
        let volume = volume.target();
        tracing::info!(%volume, "its growth waits for a mount that can be written to");
        return Ok(());
    }
    let root = root_of(mount)?;
    let fstype = &plan.superblock.fstype;
    match resize::grow(&root, &plan.device, fstype, limits) {
        Ok(bytes) => {
            tracing::info!(volume = %volume.target(), bytes, "grown before its use");
            volume.clear_resize()?;
        }
        Err(error) => {
            let why = error_message(&error);
            let volume_name = volume.target().volume_name();
            tracing::warn!(
                volume = volume_name,
                "not grown as was asked for before its use, and mounted with its old size: {why}"
            );
            // Nor does a record that can't be written: the growth is still on record, without the reason.
            if let Err(error) = volume.record_failed_resize(limits, why) {
                tracing::warn!("{error}");
            }
        }
    }
    Ok(())
}

/// Another mount of the superblock, attached nowhere: those of pods that only read can't be written
/// to, and the kernel grows a file system through one that can.
fn own_mount(record: &VolumeRecord, device: &DeviceFacts) -> Result<OwnedFd, Cause> {
    let present = &record.superblock;
    let options = present.options.iter().map(|option| FsOption::of(option));
    let options = MountOptions {
        fs_options: options.collect(),
        ..MountOptions::default()
    };
    Ok(filesystem::mount_detached(&MountRequest {
        device,
        fstype: &present.fstype,
        options: &options,
        exclusive: false,
    })?)
}

fn root_of(mount: &OwnedFd) -> Result<OwnedFd, Cause> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(mount, ".", flags, Mode::empty()).map_err(|errno| Cause::Call {
        call: "open(the volume's root)".into(),
        errno,
    })
}
