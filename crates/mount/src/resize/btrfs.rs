//! btrfs on one device.

use std::os::fd::OwnedFd;

use super::decide::Size;
use super::error::{ResizeError, ioctl, refusal};
use crate::device::Device;
use crate::sys::growth;

/// Where the superblock is (`struct btrfs_super_block`), from the magic number on.
const AT: u64 = 0x1_0040;
const LENGTH: usize = 0x54;

/// The kernel resizes no device to less (`btrfs_ioctl_resize`).
const LEAST: u64 = 256 << 20;

const SEVERAL: &str = "it is on several devices; hint: grow it with `btrfs filesystem resize`";

/// Of a mounted one.
pub(super) fn size(root: &OwnedFd, device: &Device) -> Result<Size, ResizeError> {
    let (_, size) = only_device(root, device)?;
    Ok(size)
}

fn only_device(root: &OwnedFd, device: &Device) -> Result<(u64, Size), ResizeError> {
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
    Ok((id, sectors(bytes, info.sector_size)))
}

/// Of one that isn't mounted; `None` where the device holds no btrfs.
pub(super) fn size_on(device: &Device) -> Result<Option<Size>, ResizeError> {
    let bytes = super::read::<LENGTH>(device, AT)?;
    match bytes.as_ref().and_then(parse) {
        Some((1, size)) => Ok(Some(size)),
        Some(_) => Err(several(device)),
        None => Ok(None),
    }
}

/// The number of devices, and the size of all.
fn parse(bytes: &[u8; LENGTH]) -> Option<(u64, Size)> {
    let number = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    if !bytes.starts_with(b"_BHRfS_M") {
        return None;
    }
    let sector_size = u32::from_le_bytes(*bytes.get(0x50..)?.first_chunk::<4>()?);
    Some((number(0x48)?, sectors(number(0x30)?, sector_size)))
}

fn sectors(bytes: u64, sector_size: u32) -> Size {
    Size {
        bytes,
        block: sector_size.into(),
        least: LEAST,
    }
}

fn several(device: &Device) -> ResizeError {
    ResizeError::Unsupported {
        device: device.path().to_owned(),
        fstype: "btrfs".to_owned(),
        reason: SEVERAL,
    }
}

pub(super) fn grow(root: &OwnedFd, device: &Device, bytes: u64) -> Result<(), ResizeError> {
    let (id, _) = only_device(root, device)?;
    let what = format!("{id}:{bytes}");
    growth::btrfs_resize(root, &what).map_err(|errno| {
        let call = ioctl(device, format_args!("BTRFS_IOC_RESIZE, {what}"));
        refusal(call, errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_one_that_is_not_mounted_is_in_its_superblock() {
        let mut bytes = [0; LENGTH];
        assert_eq!(parse(&bytes), None);
        bytes[..8].copy_from_slice(b"_BHRfS_M");
        bytes[0x30..0x38].copy_from_slice(&(300_u64 << 20).to_le_bytes());
        bytes[0x48] = 1;
        bytes[0x50..0x54].copy_from_slice(&4096_u32.to_le_bytes());
        let size = sectors(300 << 20, 4096);
        assert_eq!(parse(&bytes), Some((1, size)));
    }
}
