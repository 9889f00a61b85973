//! Growth of an ext4, and of an ext3 or ext2 that ext4's driver has mounted.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::SUPERBLOCK;
use crate::device::{DeviceFacts, read_at};
use crate::fstypes::descriptor::FileSystemType;
use crate::fstypes::growth::{FileSystemSize, GrowthError, has_cap_sys_resource, ioctl};
use crate::signature::Signature;
use crate::sys::growth;

/// Length in bytes of the part of the superblock with the fields that growth depends on.
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

    /// Returns the reason and a hint if the file system can't grow while it is mounted.
    ///
    /// The kernel would convert a file system without a resize inode to another layout (`meta_bg`). A request to grow a
    /// volume doesn't justify that.
    fn reason_against_growth(self) -> Option<&'static str> {
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

/// Returns the size of a mounted file system from its superblock. The size of statfs(2) doesn't include the file
/// system's own metadata.
///
/// The driver keeps the superblock in the device's page cache, so a reader of the device sees the present one
/// (resize2fs(8) reads it in the same way). A workload that can write to the device may have changed it since the
/// mount.
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

/// Returns the size of a file system that isn't mounted, from its superblock. Fails if it can't grow while it is
/// mounted.
pub(super) fn size_on_disk(
    device: &DeviceFacts,
    fstype: &FileSystemType,
    found: &Signature,
) -> Result<Option<FileSystemSize>, GrowthError> {
    let features = Features::read(device)?;
    if let Some(reason) = features.reason_against_growth() {
        return Err(GrowthError::unsupported(device, fstype.name, reason));
    }
    let (max_blocks, max_bytes_hint) = if features.incompat & INCOMPAT_64BIT == 0 {
        (u32::MAX.into(), NO_64BIT)
    } else {
        (1 << 48, "")
    };
    Ok(size_up_to(found, max_blocks).map(|size| FileSystemSize {
        max_bytes_hint,
        ..size
    }))
}

const NO_64BIT: &str = "; hint: add the feature 64bit with resize2fs -b when no pod uses the volume; an ext4 without \
                        it has at most 2^32 blocks";

fn size_up_to(found: &Signature, max_blocks: u64) -> Option<FileSystemSize> {
    let size = FileSystemSize::on_disk(found)?;
    let max_bytes = max_blocks.saturating_mul(size.block_size.get());
    Some(FileSystemSize { max_bytes, ..size })
}

pub(super) fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    size: FileSystemSize,
    bytes: u64,
) -> Result<(), GrowthError> {
    let blocks = bytes / size.block_size;
    let Err(errno) = growth::ext4_resize(root, blocks) else {
        return Ok(());
    };
    if errno != Errno::PERM {
        return Err(GrowthError::ioctl_failed(call(device, blocks), errno));
    }
    let has_errors = Features::read(device)?.state & STATE_ERRORS != 0;
    Err(not_permitted(device, blocks, has_errors))
}

/// Fails if the kernel would refuse to let this process grow the file system (`ext4_resize_begin`).
pub(super) fn check_allowed(device: &DeviceFacts, blocks: u64) -> Result<(), GrowthError> {
    let has_errors = Features::read(device)?.state & STATE_ERRORS != 0;
    // If the capabilities can't be read, the kernel decides.
    let has_capability = has_cap_sys_resource().unwrap_or(true);
    if has_errors || !has_capability {
        return Err(not_permitted(device, blocks, has_errors));
    }
    Ok(())
}

fn call(device: &DeviceFacts, blocks: u64) -> String {
    ioctl(device, format_args!("EXT4_IOC_RESIZE_FS, {blocks}"))
}

/// Returns the error for EPERM, which has two possible reasons.
fn not_permitted(device: &DeviceFacts, blocks: u64, has_errors: bool) -> GrowthError {
    let reason = if has_errors {
        "ext4 doesn't grow while it has errors; hint: stop the pods and containers that use the volume, run e2fsck \
         on the device, and resize it again"
    } else {
        "ext4 grows only for a process with CAP_SYS_RESOURCE, which runcrust doesn't have on this machine or in \
         this container; hint: give the capability to the process that runs runcrust, or grow the file system \
         with resize2fs when no pod uses it"
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
    fn file_systems_that_cannot_grow_unconverted_are_refused() {
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
            assert_eq!(
                features.reason_against_growth().is_none(),
                grows,
                "{features:?}"
            );
        }
    }

    /// `s_log_block_size` may have any value.
    #[test]
    fn a_block_size_of_zero_gives_no_size() {
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
        assert_eq!(size_up_to(&found(0), 9), None);
        let size = size_up_to(&found(4096), 9).unwrap();
        assert_eq!((size.bytes, size.block_size.get()), (0, 4096));
        assert_eq!(size.max_bytes, 9 * 4096);
    }
}
