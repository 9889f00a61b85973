//! Decides what is done to a volume, by its contents.

use std::fmt;

use super::fstype::Fstype;

/// The result of blkid(8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlkidResult {
    /// It has found nothing. That it could read anything isn't said.
    Nothing,
    /// A file system; or LUKS, LVM and the like.
    Type(String),
    /// A partition table.
    PartitionTable(String),
    /// More than one of them.
    Several,
    /// Nothing of use.
    Failed(String),
}

impl fmt::Display for BlkidResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Type(name) => f.write_str(name),
            Self::PartitionTable(kind) => write!(f, "a partition table ({kind})"),
            Self::Several => f.write_str("more than one signature"),
            Self::Failed(why) => write!(f, "nothing that could be told ({why})"),
        }
    }
}

/// The result of reading the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contents {
    /// Every byte is 0.
    Zeroes,
    /// The first one that isn't.
    Data(u64),
    /// It can't be read.
    Failed(String),
}

impl Contents {
    /// Whether there is nothing, and if not, why that isn't so.
    pub(super) fn check_empty(self) -> Result<(), FormatRefusal> {
        match self {
            Self::Zeroes => Ok(()),
            Self::Data(at) => Err(FormatRefusal::UnknownData(at)),
            Self::Failed(why) => Err(FormatRefusal::Unreadable(why)),
        }
    }
}

/// The step before the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredStep {
    /// mkfs
    Mkfs,
    /// fsck
    Fsck,
}

/// The reason for which nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FormatRefusal {
    /// Another file system than the one that is wanted.
    OtherContents(String),
    /// A partition table.
    PartitionTable(String),
    /// Two signatures.
    Several,
    /// Data that nobody knows.
    UnknownData(u64),
    /// blkid(8) failed.
    ProbeFailed(String),
    /// Reading failed.
    Unreadable(String),
}

/// Only where nothing is found is it read whether there is nothing.
pub(super) fn decide(
    said: &BlkidResult,
    contents: impl FnOnce() -> Contents,
    wanted: Fstype,
) -> Result<RequiredStep, FormatRefusal> {
    match said {
        BlkidResult::Failed(why) => Err(FormatRefusal::ProbeFailed(why.clone())),
        BlkidResult::PartitionTable(table) => Err(FormatRefusal::PartitionTable(table.clone())),
        BlkidResult::Several => Err(FormatRefusal::Several),
        BlkidResult::Type(found) if wanted.mounts(found) => Ok(RequiredStep::Fsck),
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
    fn decided(said: &BlkidResult, wanted: Fstype) -> [Result<RequiredStep, FormatRefusal>; 3] {
        contents().map(|contents| decide(said, || contents, wanted))
    }

    #[test]
    fn a_volume_is_empty_if_nothing_is_found_and_all_is_zero() {
        let unread = Err(FormatRefusal::Unreadable(UNREAD.to_owned()));
        for wanted in Fstype::all() {
            let steps = decided(&BlkidResult::Nothing, wanted);
            let expected = [
                Ok(RequiredStep::Mkfs),
                Err(FormatRefusal::UnknownData(512)),
                unread.clone(),
            ];
            assert_eq!(steps, expected, "{wanted}");
        }
    }

    #[test]
    fn what_can_be_mounted_is_checked_whatever_else_there_is() {
        for (wanted, name) in [
            (fstype_named("ext4"), "ext4"),
            (fstype_named("ext4"), "ext3"),
            (fstype_named("ext3"), "ext3"),
            (fstype_named("xfs"), "xfs"),
            (fstype_named("btrfs"), "btrfs"),
        ] {
            let is_not_read = || panic!("a file system that may be mounted isn't read");
            let step = decide(&found(name), is_not_read, wanted);
            assert_eq!(step, Ok(RequiredStep::Fsck), "{name} as {wanted}");
        }
    }

    #[test]
    fn what_is_something_else_is_left_alone() {
        for (said, reason) in [
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
            for wanted in Fstype::all() {
                let expected = [(); 3].map(|()| Err(reason.clone()));
                assert_eq!(decided(&said, wanted), expected, "{said:?} as {wanted}");
            }
        }
    }

    #[test]
    fn another_file_system_is_refused() {
        for (wanted, name) in [
            (fstype_named("ext4"), "xfs"),
            (fstype_named("ext3"), "ext4"),
            (fstype_named("xfs"), "btrfs"),
            (fstype_named("btrfs"), "ext4"),
        ] {
            let expected = [(); 3].map(|()| Err(FormatRefusal::OtherContents(name.to_owned())));
            assert_eq!(decided(&found(name), wanted), expected, "{wanted}");
        }
    }
}
