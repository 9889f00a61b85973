//! The meaning of each mount option, according to mount(8) and the two maps of util-linux (kernel options, user-space
//! options).

use rustix::mount::MountAttrFlags;

use crate::fstypes::{self, QUOTA_FILE, SECOND_DEVICE};

/// The meaning of a mount option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionMeaning {
    /// Makes the mount read-only (`ro`) or read-write (`rw`).
    ReadOnly(bool),
    /// Sets and clears attributes of the mount.
    Attribute {
        set: MountAttrFlags,
        clear: MountAttrFlags,
    },
    /// Sets or clears a superblock flag that every file system has.
    Superblock { flag: SuperblockFlag, on: bool },
    /// Only concerns programs that read fstab, and is ignored.
    Ignored,
    /// Can't be an option of a new mount of a device. The text says why.
    Refused(&'static str),
    /// Is probably a secret, judging by the name.
    Secret,
    /// Is passed to the file system.
    FileSystem,
}

impl OptionMeaning {
    /// Returns whether the option takes no value. For a superblock flag the kernel only checks the name, so
    /// `ro=anything` would mean `ro`.
    pub(super) fn is_generic(self) -> bool {
        matches!(
            self,
            Self::ReadOnly(_) | Self::Attribute { .. } | Self::Superblock { .. }
        )
    }
}

/// The superblock flags that the VFS itself handles in fsconfig(2) (`fs/fs_context.c`). `silent` is no longer one of
/// them, so file systems would refuse it as an unknown parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SuperblockFlag {
    Dirsync,
    Lazytime,
    Mand,
    Sync,
}

/// The names of the superblock flags that every file system has, as [`parse`](super::parse) returns them.
pub const SUPERBLOCK_FLAGS: [&str; 4] = [
    SuperblockFlag::Dirsync.name(),
    SuperblockFlag::Lazytime.name(),
    SuperblockFlag::Mand.name(),
    SuperblockFlag::Sync.name(),
];

impl SuperblockFlag {
    pub(super) const fn name(self) -> &'static str {
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
/// Two bits with one of three values; 0 is relatime.
const ATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR__ATIME;
const NOATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME;
const STRICTATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_STRICTATIME;

const BIND: &str =
    "is for mounting a directory a second time, but a volume is mounted from its device";
const REMOUNT: &str = "changes an existing mount, but a volume gets a new one";
const PROPAGATION: &str = "sets the propagation, which belongs to the container's mount \
     (mountPropagation) and not to the file system";
const BY_MOUNT: &str = "is implemented by mount(8), which runcrust doesn't use";
const SOURCE: &str = "sets the source, which is always the volume's device or share";
const OTHER_FILE: &str = "names something on the node other than the volume's device";

pub(super) fn meaning(key: &str) -> OptionMeaning {
    let set = |set| OptionMeaning::Attribute { set, clear: NONE };
    let clear = |clear| OptionMeaning::Attribute { set: NONE, clear };
    let atime = |set| OptionMeaning::Attribute { set, clear: ATIME };
    let superblock = |flag, on| OptionMeaning::Superblock { flag, on };
    match key {
        "ro" => OptionMeaning::ReadOnly(true),
        "rw" => OptionMeaning::ReadOnly(false),
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
        "sync" => superblock(SuperblockFlag::Sync, true),
        "async" => superblock(SuperblockFlag::Sync, false),
        "dirsync" => superblock(SuperblockFlag::Dirsync, true),
        "lazytime" => superblock(SuperblockFlag::Lazytime, true),
        "nolazytime" => superblock(SuperblockFlag::Lazytime, false),
        "mand" => superblock(SuperblockFlag::Mand, true),
        "nomand" => superblock(SuperblockFlag::Mand, false),
        // These options say which users may mount the file system. mount(8) lets them imply further options to keep
        // such a mount harmless, and a deferred mount has to behave like one of mount(8).
        "user" | "users" => set(NOSUID.union(NODEV).union(NOEXEC)),
        "owner" | "group" => set(NOSUID.union(NODEV)),
        "defaults" | "_netdev" | "nofail" | "auto" | "noauto" | "nouser" | "nousers"
        | "noowner" | "nogroup" | "comment" | "helper" | "uhelper" | "silent" | "loud" => {
            OptionMeaning::Ignored
        }
        // A flag of mount(2) that fsconfig(2) lacks. The counter is always on (xfs, btrfs, ext4 since Linux 6.1).
        "iversion" | "noiversion" => OptionMeaning::Ignored,
        "bind" | "rbind" => OptionMeaning::Refused(BIND),
        "remount" | "move" => OptionMeaning::Refused(REMOUNT),
        "shared" | "rshared" | "private" | "rprivate" | "slave" | "rslave" | "unbindable"
        | "runbindable" => OptionMeaning::Refused(PROPAGATION),
        "loop" | "offset" | "sizelimit" | "encryption" => OptionMeaning::Refused(BY_MOUNT),
        "source" => OptionMeaning::Refused(SOURCE),
        _ => meaning_by_pattern(key),
    }
}

fn meaning_by_pattern(key: &str) -> OptionMeaning {
    let lower = key.to_ascii_lowercase();
    // Checked first, because an option that is ignored at the mount would still be stored on disk.
    if is_secret(&lower) {
        return OptionMeaning::Secret;
    }
    match lower.strip_prefix("x-") {
        // These options restrict what a container sees of the volume, or change the owners. If they were silently
        // ignored, a container would get more access than was requested.
        Some("mount.subdir" | "mount.idmap" | "mount.owner" | "mount.group" | "mount.mode") => {
            OptionMeaning::Refused(BY_MOUNT)
        }
        Some(_) => OptionMeaning::Ignored,
        None if lower.starts_with("verity.") => OptionMeaning::Refused(BY_MOUNT),
        None => {
            second_source(lower.trim()).map_or(OptionMeaning::FileSystem, OptionMeaning::Refused)
        }
    }
}

/// Returns the reason to refuse an option that makes the kernel open something other than the volume's device; `None`
/// for any other option. Exclusive use, locks and records only cover that device. `key` is in lower case.
///
/// Covers every file system that `fstypes` could allow (`fs/*/super.c` of Linux 6.18; ext4(5), xfs(5), btrfs(5)).
fn second_source(key: &str) -> Option<&'static str> {
    let known = fstypes::option_rules().find_map(|rules| rules.refused(key));
    known.or_else(|| second_source_of_others(key))
}

/// Returns the same as [`second_source`] for options of types that aren't in the table of file systems.
fn second_source_of_others(key: &str) -> Option<&'static str> {
    Some(match key {
        // `jdev` is an option of reiserfs and jfs, `device` of erofs, and `devices` of bcachefs.
        "jdev" | "device" | "devices" => SECOND_DEVICE,
        // f2fs.
        "prjjquota" => QUOTA_FILE,
        // overlay, ecryptfs and fuse aren't on a block device. fuseblk is, and takes `fd`. erofs can read its data from
        // the domain of a cache.
        "lowerdir" | "lowerdir+" | "datadir+" | "upperdir" | "workdir" | "fd" | "fsid"
        | "domain_id" => OTHER_FILE,
        _ => return None,
    })
}

/// Returns the reason to refuse an option because of its value; `None` if the value is acceptable or missing.
pub(super) fn refused_value(key: &str, value: Option<&str>) -> Option<&'static str> {
    let value = value?;
    match key.to_ascii_lowercase().as_str() {
        // quotaon(8) reads `usrquota=FILE` in fstab. The kernel only knows these options without a value.
        "usrquota" | "grpquota" | "prjquota" => Some(QUOTA_FILE),
        // These values are those of gfs2 (Documentation/filesystems/gfs2.rst).
        "quota" => (!matches!(value, "off" | "account" | "quiet" | "on")).then_some(QUOTA_FILE),
        key => fstypes::option_rules().find_map(|rules| (rules.refused_value)(key, value)),
    }
}

/// Returns whether an option is probably a secret, judging by its name in lower case. `credentials=` counts as one: it
/// names a file, which would be read on the host. No option of ext4, xfs or btrfs matches.
fn is_secret(key: &str) -> bool {
    const PARTS: &[&str] = &["passw", "passphrase", "secret", "credential", "token"];
    const WORDS: &[&str] = &["pass", "pw", "cred", "creds", "sig", "signature"];
    const ENDS: &[&str] = &["key", "pwd"];
    let mut words = key.split(|c: char| !c.is_alphanumeric());
    PARTS.iter().any(|part| key.contains(part))
        || ENDS.iter().any(|end| key.ends_with(end))
        || words.any(|word| WORDS.contains(&word))
}
