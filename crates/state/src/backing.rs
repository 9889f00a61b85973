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

    /// Returns whether a mount is one of the backing. `superblocks` has the numbers of a share's superblocks: the source
    /// that mountinfo shows isn't enough, because mounts that share a superblock show the name of the first one.
    #[must_use]
    pub(crate) fn is_mounted_by(&self, mount: &Mount, superblocks: &[DeviceNumber]) -> bool {
        match self {
            Self::Device(number) => is_on(mount, *number),
            Self::Share(_) => {
                is_nfs(mount.fstype.as_encoded_bytes()) && superblocks.contains(&mount.device)
            }
        }
    }
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
    fn the_mounts_of_a_share_are_those_of_its_superblocks() {
        let mount = |line: &str| mountinfo::parse(line.as_bytes()).unwrap().remove(0);
        let own = mount("9 1 0:42 / /a rw - nfs4 other-name:/export rw\n");
        let foreign = mount("9 1 0:43 / /a rw - nfs4 srv:/export rw\n");
        // The number was reused for a file system of another type.
        let reused = mount("9 1 0:42 / /a rw - tmpfs srv:/export rw\n");
        let share: Backing = "srv:/export".parse().unwrap();
        let superblocks = [DeviceNumber::new(0, 42)];
        for (mount, expected) in [(&own, true), (&foreign, false), (&reused, false)] {
            assert_eq!(
                share.is_mounted_by(mount, &superblocks),
                expected,
                "{mount:?}"
            );
        }
        let device = Backing::from(DeviceNumber::new(0, 42));
        assert!(!device.is_mounted_by(&own, &superblocks));
    }
}
