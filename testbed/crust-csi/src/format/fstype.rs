//! The file systems that a volume can have.

use std::fmt;
use std::str::FromStr;

use crust_blockfs::probe::Kind;
use serde::{Deserialize, Serialize};

const MEBIBYTE: u64 = 1 << 20;

/// A file system that a volume can have.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fstype {
    /// What kubelet takes where none is asked for.
    #[default]
    Ext4,
    /// ext4's predecessor.
    Ext3,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

/// A name that is none of theirs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} isn't a file system that a volume can have; hint: one of ext4, ext3, xfs, btrfs")]
pub(crate) struct UnknownFstype(String);

impl Fstype {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Ext4, Self::Ext3, Self::Xfs, Self::Btrfs];

    /// How many bytes a volume has at least for one.
    pub(crate) const fn least(self) -> u64 {
        match self {
            // What is smaller gets no journal from mke2fs(8): an ext4 that doesn't outlive a crash,
            // and an ext3 that is an ext2.
            Self::Ext4 | Self::Ext3 => 2 * MEBIBYTE,
            // mkfs.xfs(8), since 5.19.
            Self::Xfs => 300 * MEBIBYTE,
            // mkfs.btrfs(8) 6.2, with its own defaults.
            Self::Btrfs => 109 * MEBIBYTE,
        }
    }

    /// Its mkfs(8).
    pub(super) const fn mkfs(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Ext3 => "mkfs.ext3",
            Self::Xfs => "mkfs.xfs",
            Self::Btrfs => "mkfs.btrfs",
        }
    }

    /// Without `-f` those that know it refuse what isn't empty; mke2fs(8) has been known to ask whether a
    /// file is meant.
    pub(super) const fn options(self) -> &'static [&'static str] {
        match self {
            // Blocks that root alone may take are of no use to a pod.
            Self::Ext4 | Self::Ext3 => &["-F", "-m0"],
            Self::Xfs | Self::Btrfs => &[],
        }
    }

    /// Whether a file system that blkid(8) calls so can be mounted as this one.
    pub(crate) fn mounts(self, found: &str) -> bool {
        kind(found).is_some_and(|kind| kind.is_mounted_as(self.name()))
    }

    /// As mount(8) and the kernel call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext3 => "ext3",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

fn kind(found: &str) -> Option<Kind> {
    let kinds = [Kind::Ext2, Kind::Ext3, Kind::Ext4, Kind::Xfs, Kind::Btrfs];
    kinds.into_iter().find(|kind| kind.fstype() == found)
}

impl fmt::Display for Fstype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fstype {
    type Err = UnknownFstype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        all.find(|fstype| fstype.name() == name)
            .ok_or_else(|| UnknownFstype(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for fstype in Fstype::ALL {
            assert_eq!(fstype.to_string().parse(), Ok(fstype));
            let error = "EXT4".parse::<Fstype>().unwrap_err().to_string();
            assert!(error.contains(&fstype.to_string()), "{error}");
        }
    }

    #[test]
    fn an_ext_mounts_its_predecessors_and_no_successor() {
        for (wanted, mounted) in [
            (Fstype::Ext4, &["ext2", "ext3", "ext4"][..]),
            (Fstype::Ext3, &["ext3"]),
            (Fstype::Xfs, &["xfs"]),
            (Fstype::Btrfs, &["btrfs"]),
        ] {
            for found in ["ext2", "ext3", "ext4", "xfs", "btrfs", "crypto_LUKS", ""] {
                let expected = mounted.contains(&found);
                assert_eq!(wanted.mounts(found), expected, "{found} as {wanted}");
            }
        }
    }
}
