//! Recognises overlays and automounts. A path into such a mount may lead to files of another directory or mount.

use std::ffi::OsStr;

use crate::identity::MountId;
use crate::sys::statmount;

/// `OVERLAYFS_SUPER_MAGIC` of `linux/magic.h`.
const OVERLAYFS: u64 = 0x794c_7630;
/// `AUTOFS_SUPER_MAGIC` of `linux/magic.h`.
const AUTOFS: u64 = 0x0187;

/// The kind of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountKind {
    /// The kernel's overlay file system. fuse-overlayfs can't be distinguished from other FUSE file systems and counts
    /// as [`Other`](Self::Other).
    Overlay,
    /// The trigger of an automount. The automount daemon mounts another file system there once the path is used.
    Autofs,
    /// A mount of any other file system.
    Other,
}

impl MountKind {
    /// Returns the kind of a mount; `None` if the kernel can't report it without the mount table (before Linux 6.8).
    /// Unlike statfs(2), doesn't wait for a file server.
    #[must_use]
    pub fn read(mount: MountId) -> Option<Self> {
        let MountId::Unique(id) = mount else {
            return None;
        };
        Some(match statmount::superblock_magic(id).ok()? {
            OVERLAYFS => Self::Overlay,
            AUTOFS => Self::Autofs,
            _ => Self::Other,
        })
    }

    /// Returns the kind of a mount with this file system type in mountinfo.
    #[must_use]
    pub fn from_fstype(fstype: &OsStr) -> Self {
        match fstype.as_encoded_bytes() {
            b"overlay" => Self::Overlay,
            b"autofs" => Self::Autofs,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::identity::FileIdentity;

    #[test]
    fn only_overlays_and_automounts_have_a_kind_of_their_own() {
        let proc = FileIdentity::look_up(Path::new("/proc")).unwrap().unwrap();
        assert!(matches!(
            MountKind::read(proc.mount),
            None | Some(MountKind::Other)
        ));
        let unknown = MountId::Unique(u64::MAX);
        assert_eq!(MountKind::read(unknown), None, "no such mount");
        assert_eq!(MountKind::read(MountId::Reusable(1)), None);
        for (fstype, expected) in [
            ("overlay", MountKind::Overlay),
            ("autofs", MountKind::Autofs),
            ("fuse.fuse-overlayfs", MountKind::Other),
            ("ext4", MountKind::Other),
        ] {
            assert_eq!(
                MountKind::from_fstype(OsStr::new(fstype)),
                expected,
                "{fstype}"
            );
        }
    }
}
