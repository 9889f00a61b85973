//! xfs.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use super::decide::Size;
use super::error::{ResizeError, ioctl, refusal};
use crate::device::DeviceFacts;
use crate::sys::growth;

/// Of a mounted one.
pub(super) fn size(root: &OwnedFd, device: &DeviceFacts) -> Result<Size, ResizeError> {
    let geometry = growth::xfs_geometry(root).map_err(|errno| {
        let call = ioctl(device, "XFS_IOC_FSGEOMETRY");
        ResizeError::Call { call, errno }
    })?;
    let block = u64::from(geometry.block_size);
    Ok(Size {
        bytes: geometry.data_blocks.saturating_mul(block),
        block: NonZeroU64::new(block).unwrap_or(NonZeroU64::MIN),
        least: 0,
        most: u64::MAX,
    })
}

/// What remains of the last allocation group is left out by the kernel where it is too small for
/// one.
pub(super) fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
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
