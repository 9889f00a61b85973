//! The backing of a volume: what its file system is on.

use std::fmt;
use std::str::FromStr;

use crust_blockfs::device_mounts::is_on;
use crust_blockfs::mountinfo::Mount;
use crust_blockfs::{DeviceNumber, ParseDeviceNumberError};
use crust_nfs::{ParseShareError, Share, is_nfs};
use serde::{Deserialize, Serialize};

use crate::target::Digest;

/// The device or share that a volume's file system is on. It is written `7:3` or `server:/export` as text and in JSON.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Backing {
    Device(DeviceNumber),
    Share(Share),
}

impl Backing {
    /// Returns the device number; `None` if the backing isn't a device of this node.
    #[must_use]
    pub fn device(&self) -> Option<DeviceNumber> {
        match self {
            Self::Device(number) => Some(*number),
            Self::Share(_) => None,
        }
    }

    #[must_use]
    pub fn key(&self) -> BackingKey {
        match self {
            Self::Device(number) => BackingKey::Device(*number),
            Self::Share(share) => BackingKey::Share(Digest::compute(share.to_string().as_bytes())),
        }
    }

    /// Returns whether the kernel has one superblock for the backing, with the options of the first mount. A share has
    /// a superblock for each list of options.
    #[must_use]
    pub(crate) fn has_one_superblock(&self) -> bool {
        self.device().is_some()
    }

    /// Returns whether a mount has a superblock of the backing. `superblocks` has the numbers of a share's superblocks.
    /// Shares of one file system on the server have the same superblock if their options are the same.
    #[must_use]
    pub(crate) fn has_superblock_of(&self, mount: &Mount, superblocks: &[DeviceNumber]) -> bool {
        match self {
            Self::Device(number) => is_on(mount, *number),
            Self::Share(_) => {
                is_nfs(mount.fstype.as_encoded_bytes()) && superblocks.contains(&mount.device)
            }
        }
    }

    /// Returns whether a mount that has a superblock of the backing shows it, or a directory in it, as its source. This
    /// is always so for a device. A share is compared by its path alone: mounts that share a superblock show the server's
    /// name of the first one.
    #[must_use]
    pub(crate) fn is_source_of(&self, mount: &Mount) -> bool {
        match self {
            Self::Device(_) => true,
            Self::Share(share) => shown_path(mount).is_some_and(|path| is_in(&path, share.path())),
        }
    }

    /// Returns whether a mount may be one of the backing's root, judging by its line in mountinfo. A share is compared by
    /// its path alone.
    #[must_use]
    pub fn may_be_mounted_by(&self, mount: &Mount) -> bool {
        match self {
            Self::Device(number) => is_on(mount, *number),
            Self::Share(share) => shown_path(mount).is_some_and(|path| path == share.path()),
        }
    }
}

/// Returns the path on the server that the source of a share's mount shows; `None` for another file system.
fn shown_path(mount: &Mount) -> Option<String> {
    if !is_nfs(mount.fstype.as_encoded_bytes()) {
        return None;
    }
    let shown: Share = mount.source.to_str()?.parse().ok()?;
    Some(shown.path().to_owned())
}

/// Returns whether a path is the directory or a path below it.
fn is_in(path: &str, directory: &str) -> bool {
    let below = path.strip_prefix(directory.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

impl From<DeviceNumber> for Backing {
    fn from(number: DeviceNumber) -> Self {
        Self::Device(number)
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(number) => number.fmt(formatter),
            Self::Share(share) => share.fmt(formatter),
        }
    }
}

impl FromStr for Backing {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, ParseShareError> {
        match text.parse() {
            Ok(number) => Ok(Self::Device(number)),
            Err(ParseDeviceNumberError(_)) => text.parse().map(Self::Share),
        }
    }
}

impl From<Backing> for String {
    fn from(backing: Backing) -> Self {
        backing.to_string()
    }
}

impl TryFrom<String> for Backing {
    type Error = ParseShareError;

    fn try_from(text: String) -> Result<Self, ParseShareError> {
        text.parse()
    }
}

/// The name of a backing in the state directory: `7:3`, or `share-` and the digest of `server:/export`, because the
/// path on a server may be longer than the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackingKey {
    Device(DeviceNumber),
    Share(Digest),
}

const SHARE_PREFIX: &str = "share-";

impl BackingKey {
    /// Returns the device number; `None` if the backing isn't a device of this node.
    #[must_use]
    pub const fn device(self) -> Option<DeviceNumber> {
        match self {
            Self::Device(number) => Some(number),
            Self::Share(_) => None,
        }
    }

    /// Returns the backing for messages. A share is only known by its digest.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Device(number) => format!("device {number}"),
            Self::Share(digest) => format!("the share with the digest {digest}"),
        }
    }

    /// Parses the name; `None` for the name of something else.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix(SHARE_PREFIX) {
            Some(digest) => digest.parse().ok().map(Self::Share),
            None => name.parse().ok().map(Self::Device),
        }
    }
}

impl From<DeviceNumber> for BackingKey {
    fn from(number: DeviceNumber) -> Self {
        Self::Device(number)
    }
}

impl fmt::Display for BackingKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(number) => number.fmt(formatter),
            Self::Share(digest) => write!(formatter, "{SHARE_PREFIX}{digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crust_blockfs::mountinfo;

    use super::*;

    #[test]
    fn a_backing_and_its_key_round_trip_through_text() {
        for text in ["7:3", "srv:/export", "[::1]:/"] {
            let backing: Backing = text.parse().unwrap();
            assert_eq!(backing.to_string(), text);
            assert_eq!(
                BackingKey::parse(&backing.key().to_string()),
                Some(backing.key())
            );
            let json = serde_json::to_string(&backing).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Backing>(&json).unwrap(), backing);
        }
        for name in ["", "7", "share-", "share-7:3", "srv:/export"] {
            assert_eq!(BackingKey::parse(name), None, "{name}");
        }
        assert!("/dev/sda".parse::<Backing>().is_err());
    }

    #[test]
    fn the_mounts_of_a_share_have_its_superblock_and_path() {
        let share: Backing = "srv:/export/a".parse().unwrap();
        let device = Backing::from(DeviceNumber::new(0, 42));
        let superblocks = [DeviceNumber::new(0, 42)];
        for (line, expected) in [
            ("9 1 0:42 / /a rw - nfs4 srv:/export/a rw\n", true),
            ("9 1 0:42 / /a rw - nfs4 other-name:/export/a rw\n", true),
            ("9 1 0:42 /b /a rw - nfs srv:/export/a/b rw\n", true),
            ("9 1 0:43 / /a rw - nfs4 srv:/export/a rw\n", false),
            // Another volume in the same file system of the server.
            ("9 1 0:42 / /a rw - nfs4 srv:/export/ab rw\n", false),
            ("9 1 0:42 / /a rw - nfs4 srv:/export rw\n", false),
            // The number was reused for a file system of another type.
            ("9 1 0:42 / /a rw - tmpfs srv:/export/a rw\n", false),
        ] {
            let mount = mountinfo::parse(line.as_bytes()).unwrap().remove(0);
            let is_own =
                share.has_superblock_of(&mount, &superblocks) && share.is_source_of(&mount);
            assert_eq!(is_own, expected, "{line}");
            assert!(!device.has_superblock_of(&mount, &superblocks), "{line}");
        }
        assert!(is_in("/a", "/") && is_in("/", "/"));
    }
}
