//! Decides from a volume's contents what has to be done before the mount.

use std::fmt;

use super::fstype::Fstype;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlkidResult {
    /// blkid found nothing. It may not have been able to read the device.
    Nothing,
    /// A file system, or something else with a signature such as LUKS or LVM.
    Type(String),
    PartitionTable(String),
    /// Signatures of more than one file system.
    Several,
    /// blkid failed, or its output makes no sense.
    Failed(String),
}

impl fmt::Display for BlkidResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Type(name) => f.write_str(name),
            Self::PartitionTable(kind) => write!(f, "a partition table ({kind})"),
            Self::Several => f.write_str("more than one signature"),
            Self::Failed(reason) => write!(f, "unknown contents ({reason})"),
        }
    }
}

/// The result of reading the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contents {
    /// Every byte is 0.
    Zeroes,
    /// The position of the first byte that isn't 0.
    Data(u64),
    /// The device can't be read.
    Failed(String),
}

impl Contents {
    /// Fails unless the device is empty.
    pub(super) fn check_empty(self) -> Result<(), FormatRefusal> {
        match self {
            Self::Zeroes => Ok(()),
            Self::Data(at) => Err(FormatRefusal::UnknownData(at)),
            Self::Failed(reason) => Err(FormatRefusal::Unreadable(reason)),
        }
    }
}

/// The step that is required before the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredStep {
    Mkfs,
    Fsck,
}

/// The reason for refusing a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FormatRefusal {
    /// Another file system than the requested one, or something else with a signature.
    OtherContents(String),
    PartitionTable(String),
    /// Signatures of more than one file system.
    Several,
    /// Data without a known signature, from this position on.
    UnknownData(u64),
    ProbeFailed(String),
    Unreadable(String),
}

/// Decides what has to be done. `contents` reads the whole device, and is only called if blkid found nothing.
pub(super) fn decide(
    found: &BlkidResult,
    contents: impl FnOnce() -> Contents,
    requested: Fstype,
) -> Result<RequiredStep, FormatRefusal> {
    match found {
        BlkidResult::Failed(reason) => Err(FormatRefusal::ProbeFailed(reason.clone())),
        BlkidResult::PartitionTable(table) => Err(FormatRefusal::PartitionTable(table.clone())),
        BlkidResult::Several => Err(FormatRefusal::Several),
        BlkidResult::Type(found) if requested.mounts(found) => Ok(RequiredStep::Fsck),
        BlkidResult::Type(found) => Err(FormatRefusal::OtherContents(found.clone())),
        BlkidResult::Nothing => contents().check_empty().map(|()| RequiredStep::Mkfs),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fstype::fstype_named;
    use super::*;

    const UNREAD: &str = "EIO";

    fn contents() -> [Contents; 3] {
        [
            Contents::Zeroes,
            Contents::Data(512),
            Contents::Failed(UNREAD.to_owned()),
        ]
    }

    fn found(name: &str) -> BlkidResult {
        BlkidResult::Type(name.to_owned())
    }

    /// Returns the decision for each of the three contents.
    fn decided(found: &BlkidResult, requested: Fstype) -> [Result<RequiredStep, FormatRefusal>; 3] {
        contents().map(|contents| decide(found, || contents, requested))
    }

    #[test]
    fn a_volume_is_empty_if_nothing_is_found_and_all_is_zero() {
        let unread = Err(FormatRefusal::Unreadable(UNREAD.to_owned()));
        for requested in Fstype::all() {
            let steps = decided(&BlkidResult::Nothing, requested);
            let expected = [
                Ok(RequiredStep::Mkfs),
                Err(FormatRefusal::UnknownData(512)),
                unread.clone(),
            ];
            assert_eq!(steps, expected, "{requested}");
        }
    }

    #[test]
    fn the_device_of_a_mountable_file_system_is_not_read() {
        for (requested, name) in [
            (fstype_named("ext4"), "ext4"),
            (fstype_named("ext4"), "ext3"),
            (fstype_named("ext3"), "ext3"),
            (fstype_named("xfs"), "xfs"),
            (fstype_named("btrfs"), "btrfs"),
        ] {
            let is_not_read = || panic!("a file system that may be mounted isn't read");
            let step = decide(&found(name), is_not_read, requested);
            assert_eq!(step, Ok(RequiredStep::Fsck), "{name} as {requested}");
        }
    }

    #[test]
    fn other_contents_are_refused() {
        for (result, reason) in [
            (
                found("crypto_LUKS"),
                FormatRefusal::OtherContents("crypto_LUKS".to_owned()),
            ),
            (
                found("LVM2_member"),
                FormatRefusal::OtherContents("LVM2_member".to_owned()),
            ),
            (
                found("vfat"),
                FormatRefusal::OtherContents("vfat".to_owned()),
            ),
            (
                BlkidResult::PartitionTable("dos".to_owned()),
                FormatRefusal::PartitionTable("dos".to_owned()),
            ),
            (BlkidResult::Several, FormatRefusal::Several),
            (
                BlkidResult::Failed("4".to_owned()),
                FormatRefusal::ProbeFailed("4".to_owned()),
            ),
        ] {
            for requested in Fstype::all() {
                let expected = [(); 3].map(|()| Err(reason.clone()));
                assert_eq!(
                    decided(&result, requested),
                    expected,
                    "{result:?} as {requested}"
                );
            }
        }
    }

    #[test]
    fn another_file_system_is_refused() {
        for (requested, name) in [
            (fstype_named("ext4"), "xfs"),
            (fstype_named("ext3"), "ext4"),
            (fstype_named("xfs"), "btrfs"),
            (fstype_named("btrfs"), "ext4"),
        ] {
            let expected = [(); 3].map(|()| Err(FormatRefusal::OtherContents(name.to_owned())));
            assert_eq!(decided(&found(name), requested), expected, "{requested}");
        }
    }
}
