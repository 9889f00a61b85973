//! Growing a mounted file system as far as its device reaches.
//!
//! What a file system's size is: all its blocks, those that it keeps for itself too. So it can be
//! compared with the device's, which statfs(2)'s number can't.

mod btrfs;
mod decide;
mod error;
mod ext4;
mod limits;
mod xfs;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

pub use decide::Misfit;
pub use error::ResizeError;
pub use ext4::can_use_reserves;
pub use limits::{Limits, NoSuchSize};

use crate::device::DeviceFacts;
use crate::probe::{self, Signature};
use decide::{Size, Step};

/// Grows a mounted file system as far as its device and the limits allow, and gives back how many
/// bytes it has then. One that is that large already is left alone.
///
/// `root` is any directory or regular file of it, open for reading on a mount that can be written
/// to. The work is the kernel's, and goes on beside whoever writes.
pub fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &str,
    limits: Limits,
) -> Result<u64, ResizeError> {
    let family = Family::of(device, fstype)?;
    let present = || size(root, device, fstype, family);
    let (capacity, before) = (device.size()?, present()?);
    let misfit = |misfit| self::misfit(device, misfit);
    let Step::Grow(target) = decide::decide(capacity, before, limits).map_err(misfit)? else {
        return Ok(before.bytes);
    };
    match family {
        Family::Ext => ext4::grow(root, device, before, target)?,
        Family::Xfs => xfs::grow(root, device, before, target)?,
        Family::Btrfs => btrfs::grow(root, device, target)?,
    }
    // The kernel may have left out an end that is too small to be of use.
    let after = present()?.bytes;
    decide::check(capacity, after, limits).map_err(misfit)?;
    Ok(after)
}

/// Returns the size in bytes that [`grow`] would give a file system that isn't mounted yet, as far as
/// its superblock tells. Fails if this process couldn't grow it.
pub fn foresee(device: &DeviceFacts, fstype: &str, limits: Limits) -> Result<u64, ResizeError> {
    let family = Family::of(device, fstype)?;
    // Where there is no such file system the mount will say so.
    let size = on_disk(device, fstype, family)?.unwrap_or(Size {
        bytes: 0,
        block: NonZeroU64::MIN,
        least: 0,
        most: u64::MAX,
    });
    let step = decide::decide(device.size()?, size, limits);
    match step.map_err(|misfit| self::misfit(device, misfit))? {
        Step::Stay => Ok(size.bytes),
        Step::Grow(target) => {
            if family == Family::Ext {
                ext4::check_allowed(device, target / size.block)?;
            }
            Ok(target)
        }
    }
}

/// File systems that grow in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Ext,
    Xfs,
    Btrfs,
}

impl Family {
    fn of(device: &DeviceFacts, fstype: &str) -> Result<Self, ResizeError> {
        match fstype {
            // ext2 too, by ext4's driver.
            "ext2" | "ext3" | "ext4" => Ok(Self::Ext),
            "xfs" => Ok(Self::Xfs),
            "btrfs" => Ok(Self::Btrfs),
            _ => Err(ResizeError::Unsupported {
                device: device.path().to_owned(),
                fstype: fstype.to_owned(),
                reason: "this version doesn't know how; hint: grow it with its own tool",
            }),
        }
    }
}

/// Of a mounted file system.
///
/// ext4 tells it nowhere: statfs(2) leaves out what it keeps for itself. Its superblock does, which
/// the driver keeps in the device's own page cache, so that a reader of the device sees the present
/// one (resize2fs(8) reads it there too).
fn size(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &str,
    family: Family,
) -> Result<Size, ResizeError> {
    match family {
        Family::Ext => on_disk(device, fstype, family)?.ok_or_else(|| ResizeError::Unsupported {
            device: device.path().to_owned(),
            fstype: fstype.to_owned(),
            reason: "its superblock can't be read; hint: run e2fsck when no pod uses it",
        }),
        Family::Xfs => xfs::size(root, device),
        Family::Btrfs => btrfs::size(root, device),
    }
}

/// By the superblock; `None` where the device holds another file system, none, or one that makes no
/// sense: a workload with the raw device can have written anything since the mount.
fn on_disk(
    device: &DeviceFacts,
    fstype: &str,
    family: Family,
) -> Result<Option<Size>, ResizeError> {
    let found = device
        .opened()
        .and_then(probe::probe)
        .map_err(|errno| error::read_failed(device, errno))?;
    let Some(found) = found.filter(|found| found.kind.is_mounted_as(fstype)) else {
        return Ok(None);
    };
    let most_blocks = match family {
        Family::Ext => ext4::check(device, fstype)?,
        Family::Btrfs if found.devices != 1 => return Err(btrfs::several(device)),
        Family::Xfs | Family::Btrfs => u64::MAX,
    };
    Ok(size_of(found, family, most_blocks))
}

fn size_of(found: Signature, family: Family, most_blocks: u64) -> Option<Size> {
    Some(Size {
        bytes: found.size,
        block: NonZeroU64::new(found.block)?,
        least: match family {
            Family::Btrfs => btrfs::LEAST,
            Family::Ext | Family::Xfs => 0,
        },
        most: most_blocks.saturating_mul(found.block),
    })
}

fn misfit(device: &DeviceFacts, misfit: Misfit) -> ResizeError {
    let device = device.path().to_owned();
    ResizeError::Limits { device, misfit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Demands, Kind, Uuid};

    /// ext4's `s_log_block_size` can be anything.
    #[test]
    fn blocks_of_nothing_give_no_size() {
        let found = |block| Signature {
            kind: Kind::Ext4,
            uuid: Uuid([0; 16]),
            size: 0,
            block,
            devices: 1,
            sector: block,
            demands: Demands::default(),
        };
        assert_eq!(size_of(found(0), Family::Ext, 9), None);
        let size = size_of(found(4096), Family::Ext, 9).unwrap();
        assert_eq!((size.bytes, size.block.get()), (0, 4096));
        assert_eq!(size.most, 9 * 4096);
    }
}
