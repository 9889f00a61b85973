//! Decides which changes an entry needs. All functions are pure.

use rustix::fs::FileType;

/// Mode bits that are added to entries other than directories (kubelet's `rwMask`).
const FILE_BITS: u32 = 0o660;
/// Mode bits that are added to directories: kubelet's `rwMask`, its `execMask`, and setgid.
const DIRECTORY_BITS: u32 = 0o2770;
/// Mode bits that chmod(2) can set.
const PERMISSIONS: u32 = 0o7777;
/// setuid and setgid, which a chown clears (chown(2)).
const SET_IDS: u32 = 0o6000;

/// The attributes of an entry that fsGroup depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryAttributes {
    pub(super) kind: FileType,
    /// The permission bits: `st_mode & 0o7777`.
    pub(super) mode: u32,
    pub(super) group: u32,
}

impl EntryAttributes {
    /// Makes attributes from `st_mode` and `st_gid`.
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

/// The changes that an entry needs: a chown, a chmod, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttributeChange {
    pub(super) chown: bool,
    /// The mode to set after the chown.
    pub(super) chmod: Option<u32>,
}

/// Returns the changes that an entry needs; `None` if it already has the group and the mode.
///
/// A chmod adds missing mode bits, and restores the bits that the chown clears. Symbolic links get none, because they
/// have no mode of their own.
pub(super) fn needed(attributes: &EntryAttributes, group: u32) -> Option<AttributeChange> {
    let chown = attributes.group != group;
    let bits = match attributes.kind {
        FileType::Symlink => return chown.then_some(AttributeChange { chown, chmod: None }),
        FileType::Directory => DIRECTORY_BITS,
        _ => FILE_BITS,
    };
    let mode = attributes.mode | bits;
    let clears_bits = chown && mode & SET_IDS != 0;
    let chmod = (clears_bits || mode != attributes.mode).then_some(mode);
    (chown || chmod.is_some()).then_some(AttributeChange { chown, chmod })
}

/// Returns true if the volume's root has the group and the mode: the negation of kubelet's `requiresPermissionChange`.
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

    fn change(chown: bool, chmod: Option<u32>) -> AttributeChange {
        AttributeChange { chown, chmod }
    }

    #[test]
    fn each_type_of_entry_gets_its_bits_and_keeps_its_own() {
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
    fn a_changed_entry_needs_no_further_change() {
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
