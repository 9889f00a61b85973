//! The file systems that a volume can have: those that the driver can make.

use std::fmt;
use std::str::FromStr;

use crust_blockfs::fstypes::{FILE_SYSTEM_TYPES, FileSystemType, Format};
use crust_blockfs::options::MountOptions;
use serde::{Deserialize, Serialize};

use crate::capability::FileSystem;

/// A file system that a volume can have.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Fstype {
    known: &'static FileSystemType,
    format: &'static Format,
}

/// A name that no supported file system has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported file system {name:?}; hint: use one of {}", names())]
pub(crate) struct UnknownFstype {
    name: String,
}

impl PartialEq for Fstype {
    fn eq(&self, other: &Self) -> bool {
        self.known == other.known
    }
}

impl Eq for Fstype {}

impl Fstype {
    /// Returns all supported file systems.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        FILE_SYSTEM_TYPES.iter().filter_map(|known| {
            let format = known.format.as_ref()?;
            Some(Self { known, format })
        })
    }

    /// Returns the minimum size of a volume in bytes.
    pub(crate) const fn min_device_bytes(self) -> u64 {
        self.format.min_device_bytes
    }

    /// Returns the programs and options that make and check the file system.
    pub(super) const fn format(self) -> &'static Format {
        self.format
    }

    /// Returns whether a file system with the name `found` in blkid(8) can be mounted as this one.
    pub(crate) fn mounts(self, found: &str) -> bool {
        self.known.can_mount(found)
    }

    /// Returns the name that mount(8) and the kernel use.
    pub(crate) const fn name(self) -> &'static str {
        self.known.name
    }
}

impl FileSystem for Fstype {
    // The same as kubelet's default.
    const DEFAULT: &'static str = "ext4";

    const IS_SHARED_BY_NODES: bool = false;

    fn normalize(self, options: MountOptions) -> Result<MountOptions, String> {
        Ok(options)
    }
}

fn names() -> String {
    let names: Vec<&str> = Fstype::all().map(Fstype::name).collect();
    names.join(", ")
}

impl fmt::Display for Fstype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fstype {
    type Err = UnknownFstype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::all().find(|fstype| fstype.name() == name);
        named.ok_or_else(|| {
            let name = name.to_owned();
            UnknownFstype { name }
        })
    }
}

impl From<Fstype> for String {
    fn from(fstype: Fstype) -> Self {
        fstype.name().to_owned()
    }
}

impl TryFrom<String> for Fstype {
    type Error = UnknownFstype;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

/// Returns the supported file system with this name.
#[cfg(test)]
pub(crate) fn fstype_named(name: &str) -> Fstype {
    name.parse().expect("a supported file system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_parsed_after_formatting() {
        let all: Vec<&str> = Fstype::all().map(Fstype::name).collect();
        assert_eq!(all, ["ext4", "ext3", "xfs", "btrfs"]);
        for fstype in Fstype::all() {
            assert_eq!(fstype.to_string().parse(), Ok(fstype));
            let error = "EXT4".parse::<Fstype>().unwrap_err().to_string();
            assert!(error.contains(&fstype.to_string()), "{error}");
        }
    }

    #[test]
    fn ext4_mounts_its_predecessors_but_ext3_not_its_successor() {
        for (requested, mounted) in [
            ("ext4", &["ext2", "ext3", "ext4"][..]),
            ("ext3", &["ext3"]),
            ("xfs", &["xfs"]),
            ("btrfs", &["btrfs"]),
        ] {
            for found in ["ext2", "ext3", "ext4", "xfs", "btrfs", "crypto_LUKS", ""] {
                let expected = mounted.contains(&found);
                assert_eq!(
                    fstype_named(requested).mounts(found),
                    expected,
                    "{found} as {requested}"
                );
            }
        }
    }
}
