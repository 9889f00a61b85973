//! The meaning of each option: mount(8), and util-linux's two maps (kernel options, user-space options).

use rustix::mount::MountAttrFlags;

use crate::fstypes::{self, QUOTA_FILE, SECOND_DEVICE};

/// The meaning of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `ro`, `rw`.
    ReadOnly(bool),
    /// An attribute of the mount, set or taken back.
    Attribute {
        set: MountAttrFlags,
        clear: MountAttrFlags,
    },
    /// A flag of every superblock, set or taken back.
    Superblock { flag: SuperblockOption, on: bool },
    /// For programs that read fstab.
    Dropped,
    /// Not an option of a new mount of a device.
    Refused(&'static str),
    /// By its name, a secret.
    Secret,
    /// The file system's business.
    FileSystem,
}

impl Meaning {
    /// Whether the kernel (or mount(8)) takes it without a value. For a superblock flag the kernel
    /// looks only at the name: `ro=anything` would be `ro`.
    pub(super) fn is_generic(self) -> bool {
        matches!(
            self,
            Self::ReadOnly(_) | Self::Attribute { .. } | Self::Superblock { .. }
        )
    }
}

/// The flags that the VFS takes out of fsconfig(2) itself (`fs/fs_context.c`). `silent` isn't one of
/// them any more: file systems would call it an unknown parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SuperblockOption {
    Dirsync,
    Lazytime,
    Mand,
    Sync,
}

impl SuperblockOption {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dirsync => "dirsync",
            Self::Lazytime => "lazytime",
            Self::Mand => "mand",
            Self::Sync => "sync",
        }
    }
}

const NONE: MountAttrFlags = MountAttrFlags::empty();
const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const NODIRATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODIRATIME;
const NOSYMFOLLOW: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW;
/// Two bits that hold one of three values; relatime is zero.
const ATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR__ATIME;
const NOATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME;
const STRICTATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_STRICTATIME;

const BIND: &str = "is for mounting a directory a second time, and this mounts a device";
const AGAIN: &str = "changes a mount that is there, and this is a new one";
const PROPAGATION: &str =
    "is propagation, which the container's mount has (mountPropagation), not the file system";
const BY_MOUNT: &str = "is carried out by mount(8), which isn't used here";
const SOURCE: &str = "the source is the volume's device";
const OTHER_FILE: &str = "names something on the node other than the volume's device";

pub(super) fn meaning(key: &str) -> Meaning {
    let set = |set| Meaning::Attribute { set, clear: NONE };
    let clear = |clear| Meaning::Attribute { set: NONE, clear };
    let atime = |set| Meaning::Attribute { set, clear: ATIME };
    let superblock = |flag, on| Meaning::Superblock { flag, on };
    match key {
        "ro" => Meaning::ReadOnly(true),
        "rw" => Meaning::ReadOnly(false),
        "nosuid" => set(NOSUID),
        "suid" => clear(NOSUID),
        "nodev" => set(NODEV),
        "dev" => clear(NODEV),
        "noexec" => set(NOEXEC),
        "exec" => clear(NOEXEC),
        "nosymfollow" => set(NOSYMFOLLOW),
        "symfollow" => clear(NOSYMFOLLOW),
        "nodiratime" => set(NODIRATIME),
        "diratime" => clear(NODIRATIME),
        "noatime" => atime(NOATIME),
        "strictatime" => atime(STRICTATIME),
        "relatime" | "atime" | "norelatime" | "nostrictatime" => atime(NONE),
        "sync" => superblock(SuperblockOption::Sync, true),
        "async" => superblock(SuperblockOption::Sync, false),
        "dirsync" => superblock(SuperblockOption::Dirsync, true),
        "lazytime" => superblock(SuperblockOption::Lazytime, true),
        "nolazytime" => superblock(SuperblockOption::Lazytime, false),
        "mand" => superblock(SuperblockOption::Mand, true),
        "nomand" => superblock(SuperblockOption::Mand, false),
        // Whoever may mount it, mount(8) lets these imply what keeps such a mount harmless; a
        // deferred mount is to behave like a plain one.
        "user" | "users" => set(NOSUID.union(NODEV).union(NOEXEC)),
        "owner" | "group" => set(NOSUID.union(NODEV)),
        "defaults" | "_netdev" | "nofail" | "auto" | "noauto" | "nouser" | "nousers"
        | "noowner" | "nogroup" | "comment" | "helper" | "uhelper" | "silent" | "loud" => {
            Meaning::Dropped
        }
        // A flag of mount(2) that fsconfig(2) has no word for: the counter is always on (xfs,
        // btrfs, ext4 since Linux 6.1).
        "iversion" | "noiversion" => Meaning::Dropped,
        "bind" | "rbind" => Meaning::Refused(BIND),
        "remount" | "move" => Meaning::Refused(AGAIN),
        "shared" | "rshared" | "private" | "rprivate" | "slave" | "rslave" | "unbindable"
        | "runbindable" => Meaning::Refused(PROPAGATION),
        "loop" | "offset" | "sizelimit" | "encryption" => Meaning::Refused(BY_MOUNT),
        "source" => Meaning::Refused(SOURCE),
        _ => by_form(key),
    }
}

fn by_form(key: &str) -> Meaning {
    let lower = key.to_ascii_lowercase();
    // Whoever it is for: what is dropped at the mount is on disk all the same.
    if is_secret(&lower) {
        return Meaning::Secret;
    }
    match lower.strip_prefix("x-") {
        // These change what is seen of the volume and as whose: left out in silence, a container
        // would be given more than was asked for.
        Some("mount.subdir" | "mount.idmap" | "mount.owner" | "mount.group" | "mount.mode") => {
            Meaning::Refused(BY_MOUNT)
        }
        Some(_) => Meaning::Dropped,
        None if lower.starts_with("verity.") => Meaning::Refused(BY_MOUNT),
        None => second_source(lower.trim()).map_or(Meaning::FileSystem, Meaning::Refused),
    }
}

/// Returns the reason to refuse an option that makes the kernel open something other than the volume's
/// device: exclusive use, locks and records cover one device. `key` is in lower case. Covers every file
/// system that `fstypes` could allow (`fs/*/super.c` of Linux 6.18; ext4(5), xfs(5), btrfs(5)).
fn second_source(key: &str) -> Option<&'static str> {
    let known = fstypes::option_rules().find_map(|rules| rules.refused(key));
    known.or_else(|| second_source_of_others(key))
}

/// Returns the same for options of types that aren't in the table of file systems.
fn second_source_of_others(key: &str) -> Option<&'static str> {
    Some(match key {
        // reiserfs and jfs; erofs; bcachefs.
        "jdev" | "device" | "devices" => SECOND_DEVICE,
        // f2fs.
        "prjjquota" => QUOTA_FILE,
        // overlay, ecryptfs and fuse aren't on a block device; fuseblk is, and takes `fd`; erofs
        // has its data from a cache's domain.
        "lowerdir" | "lowerdir+" | "datadir+" | "upperdir" | "workdir" | "fd" | "fsid"
        | "domain_id" => OTHER_FILE,
        _ => return None,
    })
}

/// Returns the reason to refuse an option because of its value; `None` if it has no value.
pub(super) fn refused_value(key: &str, value: Option<&str>) -> Option<&'static str> {
    let value = value?;
    match key.to_ascii_lowercase().as_str() {
        // quotaon(8) reads `usrquota=FILE` in fstab, and the kernel knows only the bare words.
        "usrquota" | "grpquota" | "prjquota" => Some(QUOTA_FILE),
        // The four words are gfs2's (Documentation/filesystems/gfs2.rst).
        "quota" => (!matches!(value, "off" | "account" | "quiet" | "on")).then_some(QUOTA_FILE),
        key => fstypes::option_rules().find_map(|rules| (rules.refused_value)(key, value)),
    }
}

/// `credentials=` names a file, which is as bad: it is read on the host. No option of ext4, xfs or
/// btrfs looks like one of these.
fn is_secret(key: &str) -> bool {
    const PARTS: &[&str] = &["passw", "passphrase", "secret", "credential", "token"];
    const WORDS: &[&str] = &["pass", "pw", "cred", "creds", "sig", "signature"];
    const ENDS: &[&str] = &["key", "pwd"];
    let mut words = key.split(|c: char| !c.is_alphanumeric());
    PARTS.iter().any(|part| key.contains(part))
        || ENDS.iter().any(|end| key.ends_with(end))
        || words.any(|word| WORDS.contains(&word))
}
