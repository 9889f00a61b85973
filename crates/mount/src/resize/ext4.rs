//! ext4, and ext3 by the same driver.
//!
//! A mounted one tells its size nowhere: statfs(2) leaves out what it keeps for itself. Its
//! superblock on the device does, which the driver keeps in the device's own page cache, so that a
//! reader of the device sees the present one (resize2fs(8) reads it there too).

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::decide::Size;
use super::error::{ResizeError, ioctl, refusal};
use crate::device::Device;
use crate::sys::growth;

/// Where the superblock is (`Documentation/filesystems/ext4/super.rst`), and how much of it is read.
const AT: u64 = 1024;
const LENGTH: usize = 0x154;

const COMPAT_RESIZE_INODE: u32 = 0x10;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const STATE_ERRORS: u16 = 0x2;

/// What is needed of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Superblock {
    blocks: u64,
    block_size: u64,
    compat: u32,
    incompat: u32,
    state: u16,
}

impl Superblock {
    fn read(device: &Device) -> Result<Option<Self>, ResizeError> {
        let bytes = super::read::<LENGTH>(device, AT)?;
        Ok(bytes.as_ref().and_then(Self::parse))
    }

    fn parse(bytes: &[u8; LENGTH]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        // 64 KiB is the largest block.
        let log_block_size = u32_at(0x18);
        if u16_at(0x38) != 0xEF53 || log_block_size > 6 {
            return None;
        }
        let incompat = u32_at(0x60);
        let high = if incompat & INCOMPAT_64BIT == 0 {
            0
        } else {
            u32_at(0x150)
        };
        Some(Self {
            blocks: u64::from(u32_at(0x4)) | u64::from(high) << 32,
            block_size: 1024 << log_block_size,
            compat: u32_at(0x5c),
            incompat,
            state: u16_at(0x3a),
        })
    }

    fn size(&self) -> Size {
        Size {
            bytes: self.blocks.saturating_mul(self.block_size),
            block: self.block_size,
            least: 0,
        }
    }

    /// Why it can't grow while it is mounted. The kernel would convert one without a resize inode
    /// to another layout (`meta_bg`): that isn't done to a volume that is only asked to grow.
    fn rigid(&self) -> Option<&'static str> {
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

/// `None` where the device holds no ext file system.
pub(super) fn size(device: &Device, fstype: &str) -> Result<Option<Size>, ResizeError> {
    let Some(superblock) = Superblock::read(device)? else {
        return Ok(None);
    };
    if let Some(reason) = superblock.rigid() {
        return Err(ResizeError::Unsupported {
            device: device.path().to_owned(),
            fstype: fstype.to_owned(),
            reason,
        });
    }
    Ok(Some(superblock.size()))
}

pub(super) fn grow(
    root: &OwnedFd,
    device: &Device,
    size: Size,
    bytes: u64,
) -> Result<(), ResizeError> {
    let blocks = bytes / size.block;
    let Err(errno) = growth::ext4_resize(root, blocks) else {
        return Ok(());
    };
    let call = ioctl(device, format_args!("EXT4_IOC_RESIZE_FS, {blocks}"));
    if errno != Errno::PERM {
        return Err(refusal(call, errno));
    }
    let superblock = Superblock::read(device)?;
    let errors = superblock.is_some_and(|superblock| superblock.state & STATE_ERRORS != 0);
    let reason = if errors {
        "ext4 doesn't grow with errors in it; hint: end the pod, run e2fsck on the device, and \
         resize it again"
    } else {
        "ext4 grows only for a process with CAP_SYS_RESOURCE, which this machine or container \
         withholds; hint: give it to whatever runs runcrust, or grow the file system with \
         resize2fs when no pod uses it"
    };
    Err(ResizeError::Refused {
        call,
        errno,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(fields: &[(usize, &[u8])]) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        for (at, field) in [(0x38, &[0x53, 0xEF][..])].iter().chain(fields) {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    fn parse(fields: &[(usize, &[u8])]) -> Superblock {
        Superblock::parse(&bytes(fields)).unwrap()
    }

    #[test]
    fn the_size_is_all_blocks_and_its_upper_half_counts_with_64bit_alone() {
        let blocks: (usize, &[u8]) = (0x4, &5_u32.to_le_bytes());
        let high: (usize, &[u8]) = (0x150, &1_u32.to_le_bytes());
        let log: (usize, &[u8]) = (0x18, &2_u32.to_le_bytes());
        let size = parse(&[blocks, high, log]).size();
        assert_eq!((size.bytes, size.block, size.least), (5 * 4096, 4096, 0));
        let wide: (usize, &[u8]) = (0x60, &INCOMPAT_64BIT.to_le_bytes());
        let size = parse(&[blocks, high, log, wide]).size();
        assert_eq!(size.bytes, ((1 << 32) + 5) * 4096);
    }

    #[test]
    fn something_else_is_no_superblock() {
        assert_eq!(Superblock::parse(&[0; LENGTH]), None);
        let absurd: (usize, &[u8]) = (0x18, &40_u32.to_le_bytes());
        assert_eq!(Superblock::parse(&bytes(&[absurd])), None);
    }

    #[test]
    fn what_would_be_converted_or_cannot_grow_online_does_not() {
        for (compat, incompat, grows) in [
            (COMPAT_RESIZE_INODE, 0, true),
            (0, INCOMPAT_META_BG, true),
            (0, 0, false),
            (COMPAT_RESIZE_INODE | COMPAT_SPARSE_SUPER2, 0, false),
        ] {
            let compat: (usize, [u8; 4]) = (0x5c, u32::to_le_bytes(compat));
            let incompat: (usize, [u8; 4]) = (0x60, u32::to_le_bytes(incompat));
            let superblock = parse(&[(compat.0, &compat.1), (incompat.0, &incompat.1)]);
            assert_eq!(superblock.rigid().is_none(), grows, "{superblock:?}");
        }
    }
}
