//! Decides what is done to a volume, by its contents.

use std::fmt;

use super::fstype::Fstype;

/// The result of blkid(8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It has found nothing. That it could read anything isn't said.
    Nothing,
    /// A file system; or LUKS, LVM and the like.
    Type(String),
    /// A partition table.
    Table(String),
    /// More than one of them.
    Several,
    /// Nothing of use.
    Failed(String),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Type(name) => f.write_str(name),
            Self::Table(kind) => write!(f, "a partition table ({kind})"),
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
    pub(super) fn emptiness(self) -> Result<(), Reason> {
        match self {
            Self::Zeroes => Ok(()),
            Self::Data(at) => Err(Reason::Data(at)),
            Self::Failed(why) => Err(Reason::Unread(why)),
        }
    }
}

/// The step before the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// mkfs
    Make,
    /// fsck
    Check,
}

/// The reason for which nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// Another file system than the one that is wanted.
    Other(String),
    /// A partition table.
    Table(String),
    /// Two signatures.
    Several,
    /// Data that nobody knows.
    Data(u64),
    /// blkid(8) failed.
    Unprobed(String),
    /// Reading failed.
    Unread(String),
}

/// Only where nothing is found is it read whether there is nothing.
pub(super) fn decide(
    said: &Said,
    contents: impl FnOnce() -> Contents,
    wanted: Fstype,
) -> Result<Step, Reason> {
    match said {
        Said::Failed(why) => Err(Reason::Unprobed(why.clone())),
        Said::Table(table) => Err(Reason::Table(table.clone())),
        Said::Several => Err(Reason::Several),
        Said::Type(found) if wanted.mounts(found) => Ok(Step::Check),
        Said::Type(found) => Err(Reason::Other(found.clone())),
        Said::Nothing => contents().emptiness().map(|()| Step::Make),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fstype::known;
    use super::*;

    const UNREAD: &str = "EIO";

    fn contents() -> [Contents; 3] {
        [
            Contents::Zeroes,
            Contents::Data(512),
            Contents::Failed(UNREAD.to_owned()),
        ]
    }

    fn found(name: &str) -> Said {
        Said::Type(name.to_owned())
    }

    /// Returns the decision for each of the three contents.
    fn decided(said: &Said, wanted: Fstype) -> [Result<Step, Reason>; 3] {
        contents().map(|contents| decide(said, || contents, wanted))
    }

    #[test]
    fn a_volume_is_empty_if_nothing_is_found_and_all_is_zero() {
        let unread = Err(Reason::Unread(UNREAD.to_owned()));
        for wanted in Fstype::all() {
            let steps = decided(&Said::Nothing, wanted);
            let expected = [Ok(Step::Make), Err(Reason::Data(512)), unread.clone()];
            assert_eq!(steps, expected, "{wanted}");
        }
    }

    #[test]
    fn what_can_be_mounted_is_checked_whatever_else_there_is() {
        for (wanted, name) in [
            (known("ext4"), "ext4"),
            (known("ext4"), "ext3"),
            (known("ext3"), "ext3"),
            (known("xfs"), "xfs"),
            (known("btrfs"), "btrfs"),
        ] {
            let is_not_read = || panic!("a file system that may be mounted isn't read");
            let step = decide(&found(name), is_not_read, wanted);
            assert_eq!(step, Ok(Step::Check), "{name} as {wanted}");
        }
    }

    #[test]
    fn what_is_something_else_is_left_alone() {
        for (said, reason) in [
            (
                found("crypto_LUKS"),
                Reason::Other("crypto_LUKS".to_owned()),
            ),
            (
                found("LVM2_member"),
                Reason::Other("LVM2_member".to_owned()),
            ),
            (found("vfat"), Reason::Other("vfat".to_owned())),
            (
                Said::Table("dos".to_owned()),
                Reason::Table("dos".to_owned()),
            ),
            (Said::Several, Reason::Several),
            (
                Said::Failed("4".to_owned()),
                Reason::Unprobed("4".to_owned()),
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
            (known("ext4"), "xfs"),
            (known("ext3"), "ext4"),
            (known("xfs"), "btrfs"),
            (known("btrfs"), "ext4"),
        ] {
            let expected = [(); 3].map(|()| Err(Reason::Other(name.to_owned())));
            assert_eq!(decided(&found(name), wanted), expected, "{wanted}");
        }
    }
}
