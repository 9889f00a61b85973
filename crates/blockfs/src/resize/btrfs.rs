//! btrfs on one device.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use super::decide::Size;
use super::error::{ResizeError, ioctl, refusal};
use crate::device::DeviceFacts;
use crate::sys::growth;

/// The kernel resizes no device to less (`btrfs_ioctl_resize`).
pub(super) const LEAST: u64 = 256 << 20;

const SEVERAL: &str = "it is on several devices; hint: grow it with `btrfs filesystem resize`";

/// Of a mounted one.
pub(super) fn size(root: &OwnedFd, device: &DeviceFacts) -> Result<Size, ResizeError> {
    let (_, size) = only_device(root, device)?;
    Ok(size)
}

fn only_device(root: &OwnedFd, device: &DeviceFacts) -> Result<(u64, Size), ResizeError> {
    let failed = |name: &str| {
        let call = ioctl(device, name);
        move |errno| ResizeError::Call { call, errno }
    };
    let info = growth::btrfs_info(root).map_err(failed("BTRFS_IOC_FS_INFO"))?;
    if info.devices != 1 {
        return Err(several(device));
    }
    // Ids are given once: after a replacement the only device's needn't be 1.
    let id = info.max_device_id;
    let bytes = growth::btrfs_device_bytes(root, id).map_err(failed("BTRFS_IOC_DEV_INFO"))?;
    let size = Size {
        bytes,
        block: NonZeroU64::new(info.sector_size.into()).unwrap_or(NonZeroU64::MIN),
        least: LEAST,
        most: u64::MAX,
    };
    Ok((id, size))
}

/// The error of one that isn't on this device alone.
pub(super) fn several(device: &DeviceFacts) -> ResizeError {
    ResizeError::Unsupported {
        device: device.path().to_owned(),
        fstype: "btrfs".to_owned(),
        reason: SEVERAL,
    }
}

pub(super) fn grow(root: &OwnedFd, device: &DeviceFacts, bytes: u64) -> Result<(), ResizeError> {
    let (id, _) = only_device(root, device)?;
    let what = format!("{id}:{bytes}");
    growth::btrfs_resize(root, &what).map_err(|errno| {
        let call = ioctl(device, format_args!("BTRFS_IOC_RESIZE, {what}"));
        refusal(call, errno)
    })
}
