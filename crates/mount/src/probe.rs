//! Which file system a device holds, by its magic numbers. Only a look: it serves error sentences
//! and the comparison of UUIDs, and never chooses what is mounted.

use std::fmt;
use std::os::fd::AsFd;

use rustix::io::{Errno, pread, retry_on_intr};

/// A family of file systems that share a magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext2, ext3 or ext4.
    Ext,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// Whether a file system of this kind is mounted as `fstype`.
    #[must_use]
    pub fn is_mounted_as(self, fstype: &str) -> bool {
        match self {
            Self::Ext => matches!(fstype, "ext2" | "ext3" | "ext4"),
            Self::Xfs => fstype == "xfs",
            Self::Btrfs => fstype == "btrfs",
        }
    }
}

impl Kind {
    /// The type that such a file system is mounted as.
    #[must_use]
    pub const fn fstype(self) -> &'static str {
        match self {
            Self::Ext => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext => "ext2/3/4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        })
    }
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Which.
    pub kind: Kind,
    /// The file system's UUID, in the order it is written on disk. A clone or a restored snapshot
    /// has the same.
    pub uuid: [u8; 16],
}

/// Offsets in bytes: of the magic number, its bytes, of the UUID.
const SIGNATURES: &[(Kind, u64, &[u8], u64)] = &[
    // The superblock is at 1024 (Documentation/filesystems/ext4).
    (Kind::Ext, 0x438, &[0x53, 0xEF], 0x468),
    (Kind::Xfs, 0, b"XFSB", 0x20),
    // The superblock is at 64 KiB.
    (Kind::Btrfs, 0x1_0040, b"_BHRfS_M", 0x1_0020),
];

/// Looks for the magic numbers on an open device (or image); `None` when none of them is there,
/// which includes a device too small to hold one. Errors are pread(2)'s, EIO above all.
pub fn probe(device: impl AsFd) -> Result<Option<Signature>, Errno> {
    for &(kind, at, magic, uuid_at) in SIGNATURES {
        let mut found = [0; 8];
        let found = &mut found[..magic.len()];
        if read_at(&device, found, at)? && found == magic {
            let mut uuid = [0; 16];
            read_at(&device, &mut uuid, uuid_at)?;
            return Ok(Some(Signature { kind, uuid }));
        }
    }
    Ok(None)
}

/// Whether the buffer could be filled.
fn read_at(device: impl AsFd, mut buffer: &mut [u8], mut offset: u64) -> Result<bool, Errno> {
    while !buffer.is_empty() {
        match retry_on_intr(|| pread(device.as_fd(), &mut *buffer, offset))? {
            0 => return Ok(false),
            read => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn image(writes: &[(u64, &[u8])]) -> std::fs::File {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(0x2_0000).expect("it grows");
        for (offset, bytes) in writes {
            file.write_all_at(bytes, *offset).expect("it is written");
        }
        file
    }

    #[test]
    fn each_magic_number_is_found_with_its_uuid() {
        let uuid = *b"0123456789abcdef";
        for (kind, at, magic, uuid_at) in [
            (Kind::Ext, 0x438, &b"\x53\xEF"[..], 0x468),
            (Kind::Xfs, 0, b"XFSB", 0x20),
            (Kind::Btrfs, 0x1_0040, b"_BHRfS_M", 0x1_0020),
        ] {
            let image = image(&[(at, magic), (uuid_at, &uuid)]);
            assert_eq!(probe(&image), Ok(Some(Signature { kind, uuid })));
        }
    }

    #[test]
    fn zeroes_and_half_a_magic_number_are_no_file_system() {
        assert_eq!(probe(image(&[])), Ok(None));
        assert_eq!(probe(image(&[(0, b"XFS"), (0x438, b"\x53")])), Ok(None));
    }

    #[test]
    fn a_device_too_small_for_a_superblock_holds_none() {
        let file = image(&[]);
        file.set_len(3).expect("it shrinks");
        assert_eq!(probe(&file), Ok(None));
    }

    #[test]
    fn ext_is_mounted_under_three_names() {
        for (fstype, right) in [
            ("ext2", true),
            ("ext3", true),
            ("ext4", true),
            ("xfs", false),
        ] {
            assert_eq!(Kind::Ext.is_mounted_as(fstype), right);
        }
    }
}
