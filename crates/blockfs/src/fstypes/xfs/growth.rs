//! Growth of an xfs.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use crate::device::DeviceFacts;
use crate::fstypes::descriptor::FileSystem;
use crate::fstypes::growth::{GrowthError, Size, ioctl};
use crate::sys::growth;

pub(super) fn size(
    root: &OwnedFd,
    device: &DeviceFacts,
    _: &FileSystem,
) -> Result<Size, GrowthError> {
    let geometry = growth::xfs_geometry(root).map_err(|errno| {
        let call = ioctl(device, "XFS_IOC_FSGEOMETRY");
        GrowthError::Call { call, errno }
    })?;
    let block = u64::from(geometry.block_size);
    Ok(Size {
        bytes: geometry.data_blocks.saturating_mul(block),
        block: NonZeroU64::new(block).unwrap_or(NonZeroU64::MIN),
        least: 0,
        most: u64::MAX,
        hint_above: "",
    })
}

/// Grows a mounted xfs. The kernel leaves out the end of the device if it is too small for an allocation group.
pub(super) fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    size: Size,
    bytes: u64,
) -> Result<(), GrowthError> {
    // It is set with the size, and meant to stay.
    let percent = growth::xfs_geometry(root)
        .map_err(|errno| GrowthError::refusal(ioctl(device, "XFS_IOC_FSGEOMETRY"), errno))?
        .inode_max_percent;
    growth::xfs_grow(root, bytes / size.block, percent)
        .map_err(|errno| GrowthError::refusal(ioctl(device, "XFS_IOC_FSGROWFSDATA"), errno))
}
