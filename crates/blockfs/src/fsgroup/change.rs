//! Decides which change an entry needs. Pure.

use rustix::fs::FileType;

/// Added to what isn't a directory (kubelet's `rwMask`).
const FILE_BITS: u32 = 0o660;
/// Added to directories: kubelet's `rwMask`, its `execMask`, and setgid.
const DIRECTORY_BITS: u32 = 0o2770;
/// The bits that chmod(2) can set.
const PERMISSIONS: u32 = 0o7777;
/// setuid and setgid, which a chown takes away (chown(2)).
const SET_IDS: u32 = 0o6000;

/// The attributes of an entry that fsGroup concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryAttributes {
    pub(super) kind: FileType,
    /// The twelve permission bits.
    pub(super) mode: u32,
    pub(super) group: u32,
}

impl EntryAttributes {
    /// From `st_mode` and `st_gid`.
    pub(super) fn new(raw_mode: u32, group: u32) -> Self {
        Self {
            kind: FileType::from_raw_mode(raw_mode),
            mode: raw_mode & PERMISSIONS,
            group,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }
}

/// A change of an entry; at least one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) chown: bool,
    /// The mode to be set after the chown.
    pub(super) chmod: Option<u32>,
}

/// `None`: it is right already. A chmod comes for what is to be added to the mode, and for what the
/// chown takes away; never for a symbolic link, which has no mode of its own.
pub(super) fn needed(attributes: &EntryAttributes, group: u32) -> Option<Change> {
    let chown = attributes.group != group;
    let bits = match attributes.kind {
        FileType::Symlink => return chown.then_some(Change { chown, chmod: None }),
        FileType::Directory => DIRECTORY_BITS,
        _ => FILE_BITS,
    };
    let mode = attributes.mode | bits;
    let lost = chown && mode & SET_IDS != 0;
    let chmod = (lost || mode != attributes.mode).then_some(mode);
    (chown || chmod.is_some()).then_some(Change { chown, chmod })
}

/// kubelet's `requiresPermissionChange`, the other way round.
pub(super) fn root_matches(attributes: &EntryAttributes, group: u32) -> bool {
    attributes.is_directory()
        && attributes.group == group
        && attributes.mode & DIRECTORY_BITS == DIRECTORY_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u32 = 2000;

    fn attributes(kind: FileType, mode: u32, group: u32) -> EntryAttributes {
        EntryAttributes { kind, mode, group }
    }

    fn change(chown: bool, chmod: Option<u32>) -> Change {
        Change { chown, chmod }
    }

    #[test]
    fn each_kind_of_entry_gets_its_bits_and_keeps_its_own() {
        use FileType::{BlockDevice, Directory, Fifo, RegularFile, Socket, Symlink};
        for (kind, mode, group, expected) in [
            (RegularFile, 0o600, 0, Some(change(true, Some(0o660)))),
            (RegularFile, 0o600, GROUP, Some(change(false, Some(0o660)))),
            (RegularFile, 0o660, GROUP, None),
            (RegularFile, 0o777, GROUP, None),
            (RegularFile, 0o660, 0, Some(change(true, None))),
            (RegularFile, 0o1777, 0, Some(change(true, None))),
            (RegularFile, 0o2660, 0, Some(change(true, Some(0o2660)))),
            (RegularFile, 0o4770, 0, Some(change(true, Some(0o4770)))),
            (RegularFile, 0o4755, 0, Some(change(true, Some(0o4775)))),
            (RegularFile, 0o6755, 0, Some(change(true, Some(0o6775)))),
            (RegularFile, 0o4775, GROUP, None),
            (RegularFile, 0, GROUP, Some(change(false, Some(0o660)))),
            (Directory, 0o755, 0, Some(change(true, Some(0o2775)))),
            (Directory, 0o770, GROUP, Some(change(false, Some(0o2770)))),
            (Directory, 0o2770, GROUP, None),
            (Directory, 0o2770, 0, Some(change(true, Some(0o2770)))),
            (Directory, 0o3777, GROUP, None),
            (Directory, 0o1777, 0, Some(change(true, Some(0o3777)))),
            (Symlink, 0o777, 0, Some(change(true, None))),
            (Symlink, 0o777, GROUP, None),
            (Fifo, 0o644, 0, Some(change(true, Some(0o664)))),
            (Socket, 0o755, GROUP, Some(change(false, Some(0o775)))),
            (BlockDevice, 0o600, 0, Some(change(true, Some(0o660)))),
        ] {
            let entry = attributes(kind, mode, group);
            assert_eq!(needed(&entry, GROUP), expected, "{entry:?}");
        }
    }

    #[test]
    fn group_0_is_a_group_like_any_other() {
        assert_eq!(
            needed(&attributes(FileType::RegularFile, 0o644, 1000), 0),
            Some(change(true, Some(0o664)))
        );
        assert_eq!(
            needed(&attributes(FileType::RegularFile, 0o664, 0), 0),
            None
        );
    }

    #[test]
    fn after_a_change_nothing_is_needed() {
        for kind in [FileType::RegularFile, FileType::Directory] {
            for mode in [0, 0o600, 0o4711, 0o1777, 0o7777] {
                let change = needed(&attributes(kind, mode, 0), GROUP).expect("another group");
                let after = attributes(kind, change.chmod.unwrap_or(mode), GROUP);
                assert_eq!(needed(&after, GROUP), None);
            }
        }
    }

    #[test]
    fn the_root_matches_with_group_setgid_and_all_of_770_only() {
        for (kind, mode, group, expected) in [
            (FileType::Directory, 0o2770, GROUP, true),
            (FileType::Directory, 0o3777, GROUP, true),
            (FileType::Directory, 0o2775, GROUP, true),
            (FileType::Directory, 0o2770, 0, false),
            (FileType::Directory, 0o770, GROUP, false),
            (FileType::Directory, 0o2750, GROUP, false),
            (FileType::Directory, 0o2760, GROUP, false),
            (FileType::RegularFile, 0o2770, GROUP, false),
        ] {
            let root = attributes(kind, mode, group);
            assert_eq!(root_matches(&root, GROUP), expected, "{root:?}");
        }
    }
}
