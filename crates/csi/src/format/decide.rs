//! What is done to a volume, by what is found on it.

use std::fmt;

use super::fstype::Fstype;

/// What blkid(8) says.
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

/// What reading says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contents {
    /// Every byte is 0.
    Zeroes,
    /// The first one that isn't.
    Data(u64),
    /// It can't be read.
    Failed(String),
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// mkfs
    Make,
    /// fsck
    Check,
}

/// Why nothing is.
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

/// `begun` is the file system that was begun here when the volume was empty, and that nobody has
/// mounted since. What it says is what was found can't be but half of that one.
pub(super) fn decide(
    said: &Said,
    contents: impl FnOnce() -> Contents,
    wanted: Fstype,
    begun: Option<Fstype>,
) -> Result<Step, Reason> {
    match (said, begun) {
        (Said::Failed(why), _) => Err(Reason::Unprobed(why.clone())),
        (Said::Table(table), _) => Err(Reason::Table(table.clone())),
        (Said::Several, _) => Err(Reason::Several),
        (Said::Type(found), Some(begun)) if begun.leaves(found) => match contents() {
            Contents::Zeroes | Contents::Data(_) => Ok(Step::Make),
            Contents::Failed(why) => Err(Reason::Unread(why)),
        },
        (Said::Type(found), None) if wanted.mounts(found) => Ok(Step::Check),
        (Said::Type(found), _) => Err(Reason::Other(found.clone())),
        (Said::Nothing, begun) => match contents() {
            Contents::Zeroes => Ok(Step::Make),
            Contents::Data(_) if begun.is_some() => Ok(Step::Make),
            Contents::Data(at) => Err(Reason::Data(at)),
            Contents::Failed(why) => Err(Reason::Unread(why)),
        },
    }
}

#[cfg(test)]
mod tests {
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

    /// Of each of the three contents.
    fn decided(said: &Said, wanted: Fstype, begun: Option<Fstype>) -> [Result<Step, Reason>; 3] {
        contents().map(|contents| decide(said, || contents, wanted, begun))
    }

    #[test]
    fn only_where_nothing_is_found_and_all_is_zero_is_a_volume_empty() {
        let unread = Err(Reason::Unread(UNREAD.to_owned()));
        for wanted in Fstype::ALL {
            let steps = decided(&Said::Nothing, wanted, None);
            let expected = [Ok(Step::Make), Err(Reason::Data(512)), unread.clone()];
            assert_eq!(steps, expected, "{wanted}");
        }
    }

    #[test]
    fn what_can_be_mounted_is_checked_whatever_else_there_is() {
        for (wanted, name) in [
            (Fstype::Ext4, "ext4"),
            (Fstype::Ext4, "ext3"),
            (Fstype::Ext3, "ext3"),
            (Fstype::Xfs, "xfs"),
            (Fstype::Btrfs, "btrfs"),
        ] {
            let is_not_read = || panic!("a file system that may be mounted isn't read");
            let step = decide(&found(name), is_not_read, wanted, None);
            assert_eq!(step, Ok(Step::Check), "{name} as {wanted}");
        }
    }

    #[test]
    fn what_is_something_else_is_left_alone_whoever_began_what() {
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
            for wanted in Fstype::ALL {
                for begun in [None, Some(wanted), Some(Fstype::Ext4), Some(Fstype::Xfs)] {
                    let expected = [(); 3].map(|()| Err(reason.clone()));
                    let steps = decided(&said, wanted, begun);
                    assert_eq!(steps, expected, "{said:?} as {wanted}, {begun:?}");
                }
            }
        }
    }

    #[test]
    fn another_file_system_is_refused() {
        for (wanted, name) in [
            (Fstype::Ext4, "xfs"),
            (Fstype::Ext3, "ext4"),
            (Fstype::Xfs, "btrfs"),
            (Fstype::Btrfs, "ext4"),
        ] {
            let expected = [(); 3].map(|()| Err(Reason::Other(name.to_owned())));
            assert_eq!(decided(&found(name), wanted, None), expected, "{wanted}");
        }
    }

    #[test]
    fn what_was_begun_is_made_anew_where_it_can_be_read() {
        let made = [
            Ok(Step::Make),
            Ok(Step::Make),
            Err(Reason::Unread(UNREAD.to_owned())),
        ];
        for (said, begun) in [
            (Said::Nothing, Fstype::Ext4),
            (found("ext4"), Fstype::Ext4),
            (found("ext2"), Fstype::Ext4),
            (found("ext3"), Fstype::Ext3),
            (found("xfs"), Fstype::Xfs),
            (found("btrfs"), Fstype::Btrfs),
        ] {
            // Whatever is wanted now.
            for wanted in Fstype::ALL {
                let steps = decided(&said, wanted, Some(begun));
                assert_eq!(steps, made, "{said:?} of {begun} as {wanted}");
            }
        }
    }

    #[test]
    fn what_was_not_begun_is_not_made_anew() {
        for (name, begun) in [("xfs", Fstype::Ext4), ("ext4", Fstype::Xfs)] {
            for wanted in Fstype::ALL {
                let expected = [(); 3].map(|()| Err(Reason::Other(name.to_owned())));
                let steps = decided(&found(name), wanted, Some(begun));
                assert_eq!(steps, expected, "{name} of {begun} as {wanted}");
            }
        }
    }
}
