//! Growth of an ext4, and of an ext3 or ext2 by the same driver.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::SUPERBLOCK;
use crate::device::{DeviceFacts, read_at};
use crate::fstypes::descriptor::FileSystemType;
use crate::fstypes::growth::{FileSystemSize, GrowthError, has_cap_sys_resource, ioctl};
use crate::signature::Signature;
use crate::sys::growth;

/// How much of the superblock has to do with growth, in bytes.
const LENGTH: usize = 0x64;

const COMPAT_RESIZE_INODE: u32 = 0x10;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const STATE_ERRORS: u16 = 0x2;

/// The features and the state that growth depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Features {
    compat: u32,
    incompat: u32,
    state: u16,
}

impl Features {
    fn read(device: &DeviceFacts) -> Result<Self, GrowthError> {
        let mut bytes = [0; LENGTH];
        device
            .opened()
            .and_then(|opened| read_at(opened, &mut bytes, SUPERBLOCK.offset))
            .map_err(|errno| GrowthError::read_failed(device, errno))?;
        Ok(Self::parse(&bytes))
    }

    fn parse(bytes: &[u8; LENGTH]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        Self {
            compat: u32_at(0x5c),
            incompat: u32_at(0x60),
            state: u16_at(0x3a),
        }
    }

    /// Returns the reason why the file system can't grow while it is mounted. The kernel would convert one without a
    /// resize inode to another layout (`meta_bg`): that isn't done to a volume that is only asked to grow.
    fn rigid(self) -> Option<&'static str> {
        let resize_inode = self.compat & COMPAT_RESIZE_INODE != 0;
        let meta_bg = self.incompat & INCOMPAT_META_BG != 0;
        if self.compat & COMPAT_SPARSE_SUPER2 != 0 {
            return Some(
                "it has the feature sparse_super2; hint: grow it with resize2fs when no pod uses it",
            );
        }
        if !resize_inode && !meta_bg {
            return Some(
                "it has neither a resize inode nor the feature meta_bg; hint: grow it with \
                 resize2fs when no pod uses it",
            );
        }
        None
    }
}

/// Returns the size by the superblock. statfs(2) leaves out what a file system keeps for itself. The driver keeps the
/// superblock in the device's own page cache, so that a reader of the device sees the present one (resize2fs(8) reads
/// it there too). A workload with the raw device can have written anything there since the mount.
pub(super) fn size(
    _: &OwnedFd,
    device: &DeviceFacts,
    fstype: &FileSystemType,
) -> Result<FileSystemSize, GrowthError> {
    const UNREADABLE: &str = "its superblock can't be read; hint: run e2fsck when no pod uses it";
    let found = SUPERBLOCK.read(device);
    let found = found.map_err(|errno| GrowthError::read_failed(device, errno))?;
    let size = match found.filter(|found| fstype.can_mount(found.fstype)) {
        Some(found) => size_on_disk(device, fstype, &found)?,
        None => None,
    };
    size.ok_or_else(|| GrowthError::unsupported(device, fstype.name, UNREADABLE))
}

/// Returns the size by the superblock. Fails if the file system can't grow while it is mounted.
pub(super) fn size_on_disk(
    device: &DeviceFacts,
    fstype: &FileSystemType,
    found: &Signature,
) -> Result<Option<FileSystemSize>, GrowthError> {
    let features = Features::read(device)?;
    if let Some(reason) = features.rigid() {
        return Err(GrowthError::unsupported(device, fstype.name, reason));
    }
    let (most_blocks, hint_above) = if features.incompat & INCOMPAT_64BIT == 0 {
        (u32::MAX.into(), NO_64BIT)
    } else {
        (1 << 48, "")
    };
    Ok(size_of(found, most_blocks).map(|size| FileSystemSize { hint_above, ..size }))
}

const NO_64BIT: &str = "; hint: an ext4 without the feature 64bit ends at 2^32 blocks: resize2fs -b gives it that when \
                        no pod uses it";

fn size_of(found: &Signature, most_blocks: u64) -> Option<FileSystemSize> {
    let size = FileSystemSize::on_disk(found)?;
    let most = most_blocks.saturating_mul(size.block.get());
    Some(FileSystemSize { most, ..size })
}

pub(super) fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    size: FileSystemSize,
    bytes: u64,
) -> Result<(), GrowthError> {
    let blocks = bytes / size.block;
    let Err(errno) = growth::ext4_resize(root, blocks) else {
        return Ok(());
    };
    if errno != Errno::PERM {
        return Err(GrowthError::refusal(call(device, blocks), errno));
    }
    let has_errors = Features::read(device)?.state & STATE_ERRORS != 0;
    Err(not_permitted(device, blocks, has_errors))
}

/// Fails if the kernel would refuse this process (`ext4_resize_begin`).
pub(super) fn check_allowed(device: &DeviceFacts, blocks: u64) -> Result<(), GrowthError> {
    let has_errors = Features::read(device)?.state & STATE_ERRORS != 0;
    // If the capabilities can't be read the kernel decides.
    let may = has_cap_sys_resource().unwrap_or(true);
    if has_errors || !may {
        return Err(not_permitted(device, blocks, has_errors));
    }
    Ok(())
}

fn call(device: &DeviceFacts, blocks: u64) -> String {
    ioctl(device, format_args!("EXT4_IOC_RESIZE_FS, {blocks}"))
}

/// Returns the error for EPERM, which has two reasons.
fn not_permitted(device: &DeviceFacts, blocks: u64, has_errors: bool) -> GrowthError {
    let reason = if has_errors {
        "ext4 doesn't grow with errors in it; hint: end what uses the volume, run e2fsck on the \
         device, and resize it again"
    } else {
        "ext4 grows only for a process with CAP_SYS_RESOURCE, which this machine or container \
         withholds; hint: give it to whatever runs runcrust, or grow the file system with \
         resize2fs when no pod uses it"
    };
    GrowthError::Refused {
        call: call(device, blocks),
        errno: Errno::PERM,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::Uuid;

    #[test]
    fn what_would_be_converted_or_cannot_grow_online_does_not() {
        for (compat, incompat, grows) in [
            (COMPAT_RESIZE_INODE, 0, true),
            (0, INCOMPAT_META_BG, true),
            (0, 0, false),
            (COMPAT_RESIZE_INODE | COMPAT_SPARSE_SUPER2, 0, false),
        ] {
            let mut bytes = [0; LENGTH];
            bytes[0x5c..0x60].copy_from_slice(&u32::to_le_bytes(compat));
            bytes[0x60..].copy_from_slice(&u32::to_le_bytes(incompat));
            bytes[0x3a] = 3;
            let features = Features::parse(&bytes);
            let state = 3;
            let expected = Features {
                compat,
                incompat,
                state,
            };
            assert_eq!(features, expected);
            assert_eq!(features.rigid().is_none(), grows, "{features:?}");
        }
    }
    /// `s_log_block_size` can be anything.
    #[test]
    fn blocks_of_nothing_give_no_size() {
        let found = |block| Signature {
            fstype: "ext4",
            uuid: Uuid([0; 16]),
            size: 0,
            block,
            devices: 1,
            sector: block,
            is_read_only: false,
            restriction: None,
        };
        assert_eq!(size_of(&found(0), 9), None);
        let size = size_of(&found(4096), 9).unwrap();
        assert_eq!((size.bytes, size.block.get()), (0, 4096));
        assert_eq!(size.most, 9 * 4096);
    }
}
