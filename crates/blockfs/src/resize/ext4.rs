//! ext4, and ext3 and ext2 by the same driver.

use std::os::fd::OwnedFd;

use caps::errors::CapsError;
use caps::{CapSet, Capability};
use rustix::io::Errno;

use super::decide::Size;
use super::error::{ResizeError, ioctl, read_failed, refusal};
use crate::device::{DeviceFacts, read_at};
use crate::sys::growth;

/// Where the superblock is (`Documentation/filesystems/ext4/super.rst`), and how much of it is
/// read.
const AT: u64 = 1024;
const LENGTH: usize = 0x64;

const COMPAT_RESIZE_INODE: u32 = 0x10;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const STATE_ERRORS: u16 = 0x2;

/// What decides whether it can grow while it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Features {
    compat: u32,
    incompat: u32,
    state: u16,
}

impl Features {
    fn read(device: &DeviceFacts) -> Result<Self, ResizeError> {
        let mut bytes = [0; LENGTH];
        device
            .opened()
            .and_then(|opened| read_at(opened, &mut bytes, AT))
            .map_err(|errno| read_failed(device, errno))?;
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

    /// Why it can't grow while it is mounted. The kernel would convert one without a resize inode
    /// to another layout (`meta_bg`): that isn't done to a volume that is only asked to grow.
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

/// How many blocks it can have. Fails where it can't grow while it is mounted.
pub(super) fn check(device: &DeviceFacts, fstype: &str) -> Result<u64, ResizeError> {
    let features = Features::read(device)?;
    match features.rigid() {
        None if features.incompat & INCOMPAT_64BIT == 0 => Ok(u32::MAX.into()),
        None => Ok(1 << 48),
        Some(reason) => Err(ResizeError::Unsupported {
            device: device.path().to_owned(),
            fstype: fstype.to_owned(),
            reason,
        }),
    }
}

pub(super) fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    size: Size,
    bytes: u64,
) -> Result<(), ResizeError> {
    let blocks = bytes / size.block;
    let Err(errno) = growth::ext4_resize(root, blocks) else {
        return Ok(());
    };
    if errno != Errno::PERM {
        return Err(refusal(call(device, blocks), errno));
    }
    let has_errors = Features::read(device)?.state & STATE_ERRORS != 0;
    Err(not_permitted(device, blocks, has_errors))
}

/// Whether this thread may take a file system's reserves, and let an ext4 grow
/// (`CAP_SYS_RESOURCE`, `ext4_resize_begin`).
pub fn can_use_reserves() -> Result<bool, CapsError> {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE)
}

/// Fails where the kernel wouldn't let this process grow it (`ext4_resize_begin`).
pub(super) fn check_allowed(device: &DeviceFacts, blocks: u64) -> Result<(), ResizeError> {
    let has_errors = Features::read(device)?.state & STATE_ERRORS != 0;
    // What can't be asked is left to the kernel.
    let may = can_use_reserves().unwrap_or(true);
    if has_errors || !may {
        return Err(not_permitted(device, blocks, has_errors));
    }
    Ok(())
}

fn call(device: &DeviceFacts, blocks: u64) -> String {
    ioctl(device, format_args!("EXT4_IOC_RESIZE_FS, {blocks}"))
}

/// The two reasons for EPERM.
fn not_permitted(device: &DeviceFacts, blocks: u64, has_errors: bool) -> ResizeError {
    let reason = if has_errors {
        "ext4 doesn't grow with errors in it; hint: end what uses the volume, run e2fsck on the \
         device, and resize it again"
    } else {
        "ext4 grows only for a process with CAP_SYS_RESOURCE, which this machine or container \
         withholds; hint: give it to whatever runs runcrust, or grow the file system with \
         resize2fs when no pod uses it"
    };
    ResizeError::Refused {
        call: call(device, blocks),
        errno: Errno::PERM,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
