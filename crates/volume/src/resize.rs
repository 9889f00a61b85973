//! Grows a volume (KEP-2857: `RuntimeExpandVolume`): at once if it is in use, otherwise with its next mount.

use std::os::fd::OwnedFd;

use crust_blockfs::resize::SizeLimits;
use crust_state::record::{UserKind, VolumeRecord};
use crust_state::{Process, TargetPath, Volume, error_message};
use rustix::fs::{Mode, OFlags, openat};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::mount_source;
use super::plan::MountPlan;
use super::progress;
use super::volume_mounts::{self, VolumeMount};
use crust_blockfs::device::DeviceFacts;
use crust_blockfs::filesystem::{self, MountRequest};
use crust_blockfs::options::{FsOption, MountOptions};
use crust_blockfs::resize;

/// Grows a volume as far as its device and the limits allow, and returns the file system's new size in bytes.
///
/// If the volume isn't in use, the growth is recorded in place of an earlier one, and the next mount carries it out
/// before the volume becomes visible. In this case the returned size is the expected size.
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
            if let Some(bytes) = grow_in_use(context, volume, &record, limits)? {
                // A recorded growth that failed in a mount is obsolete now.
                volume.clear_resize()?;
                return Ok(bytes);
            }
        }
        record_growth(context, volume, limits)
    };
    resized().map_err(|cause| VolumeError::new(target, cause))
}

/// Grows a volume that is mounted; `None` if it isn't.
fn grow_in_use(
    context: &Context<'_>,
    volume: &Volume,
    record: &VolumeRecord,
    limits: SizeLimits,
) -> Result<Option<u64>, Cause> {
    let mut mounts = volume_mounts::find(record).peekable();
    if mounts.peek().is_none() {
        // A killed create leaves a live sandbox without the volume: the growth is then left to the next mount. A
        // container, however, has the volume even if its mount isn't found.
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
    let source = mount_source::open_mounted(&record.backing)?;
    let device = source.device().ok_or(Cause::NoGrowth)?;
    let _lock = source.lock(context)?;
    let root = match mounts.find(VolumeMount::is_writable) {
        Some(mount) => mount.open().map_err(|errno| Cause::Call {
            call: format!("open({})", mount.mount.mount_point.display()),
            errno,
        })?,
        None => open_root(&writable_mount(record, device)?)?,
    };
    let fstype = &record.superblock.fstype;
    progress::growth_started(volume.target(), fstype, device);
    let bytes = resize::grow(&root, device, fstype, limits)?;
    tracing::info!(volume = %volume.target(), bytes, "grown");
    Ok(Some(bytes))
}

fn record_growth(context: &Context<'_>, volume: &Volume, limits: SizeLimits) -> Result<u64, Cause> {
    let plan = MountPlan::new(context.config, volume.info(), None)?;
    let device = plan.source.device().ok_or(Cause::NoGrowth)?;
    if plan.superblock.read_only {
        return Err(Cause::ReadOnly);
    }
    let bytes = resize::predict_size(device, &plan.superblock.fstype, limits)?;
    volume.record_resize(limits)?;
    Ok(bytes)
}

/// Carries out the recorded growth on a detached mount.
///
/// If growing fails, the pod starts nevertheless: the error is logged and recorded, [`stats`](super::stats()) reports
/// it, and the next mount retries.
pub(super) fn carry_out(volume: &Volume, plan: &MountPlan, mount: &OwnedFd) -> Result<(), Cause> {
    let (Some(limits), Some(device)) = (volume.pending_resize()?, plan.source.device()) else {
        return Ok(());
    };
    if plan.superblock.read_only {
        let volume = volume.target();
        tracing::info!(%volume, "the growth waits for a writable mount");
        return Ok(());
    }
    let root = open_root(mount)?;
    let fstype = &plan.superblock.fstype;
    progress::growth_started(volume.target(), fstype, device);
    match resize::grow(&root, device, fstype, limits) {
        Ok(bytes) => {
            tracing::info!(volume = %volume.target(), bytes, "grown before its use");
            volume.clear_resize()?;
        }
        Err(error) => {
            let message = error_message(&error);
            let volume_name = volume.target().volume_name();
            tracing::warn!(
                volume = volume_name,
                "growing failed, and the volume is mounted with its old size: {message}"
            );
            // If the failure can't be recorded, the resize stays pending all the same; only the error message is lost.
            if let Err(error) = volume.record_failed_resize(limits, message) {
                tracing::warn!("{error}");
            }
        }
    }
    Ok(())
}

/// Makes a detached, writable mount of the volume's superblock. The kernel needs one to grow a file system, and the
/// mounts of pods that only read are read-only.
fn writable_mount(record: &VolumeRecord, device: &DeviceFacts) -> Result<OwnedFd, Cause> {
    let present = &record.superblock;
    let options = present.options.iter().map(|option| FsOption::parse(option));
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

fn open_root(mount: &OwnedFd) -> Result<OwnedFd, Cause> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(mount, ".", flags, Mode::empty()).map_err(|errno| Cause::Call {
        call: "open(the volume's root)".into(),
        errno,
    })
}
