//! Kinds of mounts whose sources lead elsewhere than their paths say.

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
    /// The kernel's overlay file system. fuse-overlayfs isn't told from another FUSE file system.
    Overlay,
    /// An automount's trigger: something else is mounted there once it is used.
    Autofs,
    /// Any other.
    Other,
}

impl MountKind {
    /// Returns the kind of a mount; `None` if the kernel doesn't tell without the mount table (before Linux 6.8). No
    /// file server is asked, unlike by statfs(2), which waits for one that doesn't answer.
    #[must_use]
    pub fn of(mount: MountId) -> Option<Self> {
        let MountId::Unique(id) = mount else {
            return None;
        };
        Some(match statmount::superblock_magic(id).ok()? {
            OVERLAYFS => Self::Overlay,
            AUTOFS => Self::Autofs,
            _ => Self::Other,
        })
    }

    /// Returns the kind by mountinfo's type.
    #[must_use]
    pub fn by_type(fstype: &OsStr) -> Self {
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
    use crate::identity::Identity;

    #[test]
    fn only_what_leads_elsewhere_has_a_kind() {
        let proc = Identity::of(Path::new("/proc")).unwrap().unwrap();
        assert!(matches!(
            MountKind::of(proc.mount),
            None | Some(MountKind::Other)
        ));
        let unknown = MountId::Unique(u64::MAX);
        assert_eq!(MountKind::of(unknown), None, "no such mount");
        assert_eq!(MountKind::of(MountId::Reusable(1)), None);
        for (fstype, expected) in [
            ("overlay", MountKind::Overlay),
            ("autofs", MountKind::Autofs),
            ("fuse.fuse-overlayfs", MountKind::Other),
            ("ext4", MountKind::Other),
        ] {
            assert_eq!(MountKind::by_type(OsStr::new(fstype)), expected, "{fstype}");
        }
    }
}
