//! Which file system a device holds, by its superblock. Only a look: it serves error sentences and
//! the comparison of UUIDs, and never chooses what is mounted.

use std::fmt;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::device::{DeviceFacts, read_at};

/// A file system that is told apart from others by what is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext2: no journal, and nothing that ext4 brought.
    Ext2,
    /// ext3: a journal, and nothing that ext4 brought.
    Ext3,
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// Whether a file system of this kind can be mounted as `fstype`.
    #[must_use]
    pub fn is_mounted_as(self, fstype: &str) -> bool {
        match self {
            Self::Ext2 => matches!(fstype, "ext2" | "ext4"),
            Self::Ext3 => matches!(fstype, "ext2" | "ext3" | "ext4"),
            Self::Ext4 | Self::Xfs | Self::Btrfs => fstype == self.fstype(),
        }
    }

    /// The type that such a file system is mounted as.
    #[must_use]
    pub const fn fstype(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fstype())
    }
}

/// A file system's superblock, as far as it is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Which.
    pub kind: Kind,
    /// The file system's UUID. A clone or a restored snapshot has the same.
    pub uuid: Uuid,
    /// How much of the device is the file system's, in bytes: all of it, what it keeps for itself
    /// too.
    pub size: u64,
    /// The size is a whole number of these, in bytes; 0 where the superblock makes no sense.
    pub block: u64,
    /// How many devices it lies on; only btrfs knows more than one.
    pub devices: u64,
    /// The smallest unit that it reads, in bytes: a device with larger logical blocks can't hold it.
    pub sector: u64,
    /// Restrictions on how it can be mounted.
    pub demands: Demands,
}

/// Properties of a file system that restrict how it can be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demands {
    /// A btrfs seed, which is only mounted read-only (btrfs-seed(5)).
    pub seed: bool,
    /// An ext4 whose journal has fast commits that have to be replayed.
    pub fast_commits: bool,
    /// An ext4 that no mount can write to (`tune2fs -O read-only`).
    pub read_only: bool,
}

/// A file system's UUID, in the order it is written on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// All zeroes: none was given.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    /// `0f1e2d3c-0011-2233-4455-66778899aabb`, as the kernel and blkid(8) write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

type Understand = fn(&[u8]) -> Option<Signature>;

/// Where a superblock is, how much of it is needed, and who understands it.
const SUPERBLOCKS: &[(u64, usize, Understand)] = &[
    (0x400, 0x154, ext),
    (0, 0x68, xfs),
    (0x1_0000, 0x100, btrfs),
];

/// Whether the device's file system can't be mounted read-write at all, because of its type or of a
/// flag in its superblock. Reads the device.
pub fn is_read_only_by_nature(device: &DeviceFacts, fstype: &str) -> bool {
    if is_read_only_type(fstype) {
        return true;
    }
    let found = device.opened().and_then(probe);
    let found = found.ok().flatten();
    found.is_some_and(|found| found.demands.read_only)
}

/// Whether no file system of this type can be written to.
pub(crate) fn is_read_only_type(fstype: &str) -> bool {
    matches!(
        fstype,
        "squashfs" | "erofs" | "iso9660" | "cramfs" | "romfs"
    )
}

/// Looks for the superblocks on an open device (or image); `None` when none of them is there,
/// which includes a device too small to hold one. Errors are pread(2)'s, EIO above all.
pub fn probe(device: impl AsFd) -> Result<Option<Signature>, Errno> {
    for &(at, length, understand) in SUPERBLOCKS {
        let mut superblock = vec![0; length];
        if read_at(&device, &mut superblock, at)?
            && let Some(signature) = understand(&superblock)
        {
            return Ok(Some(signature));
        }
    }
    Ok(None)
}

/// `struct ext4_super_block` (Documentation/filesystems/ext4/super.rst). Whose it is is decided
/// as blkid(8) does, by the features that ext2 and ext3 don't have.
fn ext(superblock: &[u8]) -> Option<Signature> {
    const HAS_JOURNAL: u32 = 0x4;
    const FAST_COMMIT: u32 = 0x400;
    const NEEDS_RECOVERY: u32 = 0x4;
    const IS_A_JOURNAL: u32 = 0x8;
    const READ_ONLY: u32 = 0x1000;
    const IS_64BIT: u32 = 0x80;
    /// filetype, recover, `meta_bg`
    const INCOMPATIBLE_OF_EXT3: u32 = 0x2 | 0x4 | 0x10;
    /// `sparse_super`, `large_file`, `btree_dir`
    const READ_ONLY_OF_EXT3: u32 = 0x1 | 0x2 | 0x4;
    if superblock[0x38..0x3a] != [0x53, 0xEF] {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(bytes(superblock, at));
    let (compatible, incompatible, read_only) = (number(0x5c), number(0x60), number(0x64));
    // Another's external journal is no file system.
    if incompatible & IS_A_JOURNAL != 0 {
        return None;
    }
    let high = if incompatible & IS_64BIT == 0 {
        0
    } else {
        number(0x150)
    };
    let blocks = u64::from(high) << 32 | u64::from(number(0x4));
    let kind = if incompatible & !INCOMPATIBLE_OF_EXT3 != 0 || read_only & !READ_ONLY_OF_EXT3 != 0 {
        Kind::Ext4
    } else if compatible & HAS_JOURNAL != 0 {
        Kind::Ext3
    } else {
        Kind::Ext2
    };
    let bits = number(0x18).saturating_add(10);
    let block_size = 1_u64.checked_shl(bits).unwrap_or(0);
    Some(Signature {
        kind,
        uuid: Uuid(bytes(superblock, 0x68)),
        size: blocks.saturating_mul(block_size),
        block: block_size,
        devices: 1,
        sector: block_size,
        demands: Demands {
            fast_commits: compatible & FAST_COMMIT != 0 && incompatible & NEEDS_RECOVERY != 0,
            read_only: read_only & READ_ONLY != 0,
            ..Demands::default()
        },
    })
}

/// `struct xfs_dsb` (`fs/xfs/libxfs/xfs_format.h`), big-endian.
fn xfs(superblock: &[u8]) -> Option<Signature> {
    superblock.starts_with(b"XFSB").then(|| {
        let block_size = u32::from_be_bytes(bytes(superblock, 0x4));
        let blocks = u64::from_be_bytes(bytes(superblock, 0x8));
        Signature {
            kind: Kind::Xfs,
            uuid: Uuid(bytes(superblock, 0x20)),
            size: blocks.saturating_mul(u64::from(block_size)),
            block: u64::from(block_size),
            devices: 1,
            sector: u64::from(u16::from_be_bytes(bytes(superblock, 0x66))),
            demands: Demands::default(),
        }
    })
}

/// `struct btrfs_super_block` (`include/uapi/linux/btrfs_tree.h`), packed; the size is that of its
/// `dev_item`, the device that this copy is on.
fn btrfs(superblock: &[u8]) -> Option<Signature> {
    /// The superblock's flag `BTRFS_SUPER_FLAG_SEEDING`.
    const SEEDING: u64 = 1 << 32;
    let sector = u64::from(u32::from_le_bytes(bytes(superblock, 0x90)));
    (superblock[0x40..0x48] == *b"_BHRfS_M").then(|| Signature {
        kind: Kind::Btrfs,
        uuid: Uuid(bytes(superblock, 0x20)),
        size: u64::from_le_bytes(bytes(superblock, 0xd1)),
        block: sector,
        devices: u64::from_le_bytes(bytes(superblock, 0x88)),
        sector,
        demands: Demands {
            seed: u64::from_le_bytes(bytes(superblock, 0x38)) & SEEDING != 0,
            ..Demands::default()
        },
    })
}

/// The bytes of a field; zeroes where the superblock ends before it.
fn bytes<const N: usize>(superblock: &[u8], at: usize) -> [u8; N] {
    let field = superblock.get(at..at + N);
    field
        .and_then(|field| field.try_into().ok())
        .unwrap_or([0; N])
}

#[cfg(test)]
mod tests;
