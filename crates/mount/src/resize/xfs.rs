//! xfs.

use std::os::fd::OwnedFd;

use super::decide::Size;
use super::error::{ResizeError, ioctl, refusal};
use crate::device::Device;
use crate::sys::growth;

/// How much of the superblock, which is at 0, is read.
const LENGTH: usize = 16;

/// Of a mounted one.
pub(super) fn size(root: &OwnedFd, device: &Device) -> Result<Size, ResizeError> {
    let geometry = growth::xfs_geometry(root).map_err(|errno| {
        let call = ioctl(device, "XFS_IOC_FSGEOMETRY");
        ResizeError::Call { call, errno }
    })?;
    Ok(blocks(geometry.data_blocks, geometry.block_size))
}

/// Of one that isn't mounted; `None` where the device holds no xfs.
pub(super) fn size_on(device: &Device) -> Result<Option<Size>, ResizeError> {
    let bytes = super::read::<LENGTH>(device, 0)?;
    Ok(bytes.as_ref().and_then(parse))
}

/// `xfs_dsb` of `fs/xfs/libxfs/xfs_format.h`: big-endian.
fn parse(bytes: &[u8; LENGTH]) -> Option<Size> {
    let (head, count) = bytes.split_last_chunk::<8>()?;
    let (magic, block_size) = head.split_last_chunk::<4>()?;
    (magic == b"XFSB").then(|| blocks(u64::from_be_bytes(*count), u32::from_be_bytes(*block_size)))
}

fn blocks(count: u64, size: u32) -> Size {
    Size {
        bytes: count.saturating_mul(size.into()),
        block: size.into(),
        least: 0,
    }
}

/// What remains of the last allocation group is left out by the kernel where it is too small for
/// one.
pub(super) fn grow(
    root: &OwnedFd,
    device: &Device,
    size: Size,
    bytes: u64,
) -> Result<(), ResizeError> {
    // It is set with the size, and meant to stay.
    let percent = growth::xfs_geometry(root)
        .map_err(|errno| refusal(ioctl(device, "XFS_IOC_FSGEOMETRY"), errno))?
        .inode_max_percent;
    growth::xfs_grow(root, bytes / size.block, percent)
        .map_err(|errno| refusal(ioctl(device, "XFS_IOC_FSGROWFSDATA"), errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_one_that_is_not_mounted_is_in_its_superblock() {
        let size = parse(b"XFSB\x00\x00\x10\x00\x00\x00\x00\x00\x00\x01\x00\x02").unwrap();
        assert_eq!((size.bytes, size.block), (0x10002 * 4096, 4096));
        assert_eq!(parse(&[0; LENGTH]), None);
    }
}
