//! Growth of a btrfs on one device.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use crate::device::DeviceFacts;
use crate::fstypes::descriptor::FileSystem;
use crate::fstypes::growth::{GrowthError, Size, ioctl};
use crate::signature::Signature;
use crate::sys::growth;

/// The smallest size that the kernel resizes a device to, in bytes (`btrfs_ioctl_resize`).
const LEAST: u64 = 256 << 20;

pub(super) fn size(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &FileSystem,
) -> Result<Size, GrowthError> {
    let (_, size) = only_device(root, device, fstype.name)?;
    Ok(size)
}

/// Returns the id of the only device and the size of its part of the file system.
fn only_device(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &str,
) -> Result<(u64, Size), GrowthError> {
    let failed = |name: &str| {
        let call = ioctl(device, name);
        move |errno| GrowthError::Call { call, errno }
    };
    let info = growth::btrfs_info(root).map_err(failed("BTRFS_IOC_FS_INFO"))?;
    if info.devices != 1 {
        return Err(several(device, fstype));
    }
    // Ids are given once: after a replacement the only device's needn't be 1.
    let id = info.max_device_id;
    let bytes = growth::btrfs_device_bytes(root, id).map_err(failed("BTRFS_IOC_DEV_INFO"))?;
    let size = Size {
        bytes,
        block: NonZeroU64::new(info.sector_size.into()).unwrap_or(NonZeroU64::MIN),
        least: LEAST,
        most: u64::MAX,
        hint_above: "",
    };
    Ok((id, size))
}

pub(super) fn size_on_disk(
    device: &DeviceFacts,
    fstype: &FileSystem,
    found: &Signature,
) -> Result<Option<Size>, GrowthError> {
    if found.devices != 1 {
        return Err(several(device, fstype.name));
    }
    let size = Size::on_disk(found);
    Ok(size.map(|size| Size {
        least: LEAST,
        ..size
    }))
}

/// Returns the error for a file system that isn't on this device alone.
fn several(device: &DeviceFacts, fstype: &str) -> GrowthError {
    const REASON: &str = "it is on several devices; hint: grow it with `btrfs filesystem resize`";
    GrowthError::unsupported(device, fstype, REASON)
}

pub(super) fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    _: Size,
    bytes: u64,
) -> Result<(), GrowthError> {
    let (id, _) = only_device(root, device, "btrfs")?;
    let what = format!("{id}:{bytes}");
    growth::btrfs_resize(root, &what).map_err(|errno| {
        let call = ioctl(device, format_args!("BTRFS_IOC_RESIZE, {what}"));
        GrowthError::refusal(call, errno)
    })
}
