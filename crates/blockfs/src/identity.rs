//! The identity of a directory or file, which doesn't depend on the path that leads to it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::errno::Name;
use crate::{DeviceNumber, openat2};

/// `STATX_MNT_ID_UNIQUE` of `linux/stat.h` (Linux 6.8). If both are requested, an older kernel returns `STATX_MNT_ID`.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The id of a mount. Ids of the two kinds are never equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountId {
    /// An id that the kernel doesn't use again until the next boot (Linux 6.8).
    Unique(u64),
    /// The id in mountinfo. The kernel reuses it once the mount is gone.
    Reusable(u64),
}

/// The identity of the directory or file that a path leads to, and the mount that it is reached through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// `st_dev`, which differs between the subvolumes of a btrfs.
    pub device: DeviceNumber,
    /// `st_ino`, which is unique on its file system while the file exists.
    pub inode: u64,
    /// The mount that the directory or file is reached through.
    pub mount: MountId,
    /// Whether the directory or file is the root of that mount.
    pub is_mount_root: bool,
    /// Whether the path leads to a directory.
    pub is_directory: bool,
}

impl FileIdentity {
    /// Returns the identity of the file that a path leads to, following symbolic links; `None` if the path leads to
    /// nothing.
    ///
    /// Calls statx(2), which opens no device. Attributes are taken from the cache, so the call waits for a file server
    /// only to look up the names.
    pub fn look_up(path: &Path) -> Result<Option<Self>, LookupError> {
        let stat = statx(CWD, path, AtFlags::NO_AUTOMOUNT);
        let stat = LookupError::unless_missing("statx", path, stat)?;
        Ok(stat.map(|stat| Self::from_statx(&stat)))
    }

    /// Returns the identity of an open file, which may be open with `O_PATH`. `path` is used in the error only.
    pub fn from_descriptor(opened: impl AsFd, path: &Path) -> Result<Self, LookupError> {
        let stat = statx(opened, Path::new(""), AtFlags::EMPTY_PATH);
        let stat = stat.map_err(|errno| LookupError::new("statx", path, errno))?;
        Ok(Self::from_statx(&stat))
    }

    /// Returns the identity of the file that a path leads to, following symbolic links, if the kernel has the whole
    /// path in its cache. Never waits for a disk or a file server.
    #[must_use]
    pub fn from_cache(path: &Path) -> CachedIdentity {
        match openat2::open_cached(path, ResolveFlags::empty()) {
            Ok(opened) => Self::from_descriptor(opened, path)
                .map_or(CachedIdentity::Unknown, CachedIdentity::Found),
            Err(errno) if is_missing(errno) => CachedIdentity::Missing,
            Err(_) => CachedIdentity::Unknown,
        }
    }

    /// Triggers the automount that a path leads to, and returns the identity of the root of what is mounted then;
    /// `None` if the path leads to nothing. Waits for the automount daemon, as a bind mount of the path does.
    pub fn look_up_automount(path: &Path) -> Result<Option<Self>, LookupError> {
        // Without OPEN_TREE_CLONE this opens the path with O_PATH, but looks it up as a bind mount does.
        let opened = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLOEXEC);
        let opened = LookupError::unless_missing("open_tree", path, opened)?;
        opened
            .map(|opened| Self::from_descriptor(opened, path))
            .transpose()
    }

    fn from_statx(stat: &Statx) -> Self {
        let is_unique = stat.stx_mask & MNT_ID_UNIQUE.bits() != 0;
        let id = if is_unique {
            MountId::Unique
        } else {
            MountId::Reusable
        };
        Self {
            device: DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            mount: id(stat.stx_mnt_id),
            is_mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            is_directory: FileType::from_raw_mode(stat.stx_mode.into()).is_dir(),
        }
    }

    /// Returns the part of the identity that doesn't depend on the mount: `st_dev` and the inode number.
    #[must_use]
    pub fn file(&self) -> (DeviceNumber, u64) {
        (self.device, self.inode)
    }
}

/// The result of a lookup that doesn't wait for a disk or a file server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedIdentity {
    /// The path leads to nothing.
    Missing,
    /// The path leads to this directory or file.
    Found(FileIdentity),
    /// The kernel would have to wait for a disk or a file server, or the lookup failed.
    Unknown,
}

fn statx(directory: impl AsFd, path: &Path, flags: AtFlags) -> Result<Statx, Errno> {
    let fields = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID | MNT_ID_UNIQUE;
    rustix::fs::statx(directory, path, flags | AtFlags::STATX_DONT_SYNC, fields)
}

/// The error of a path that couldn't be looked up, though it may lead to something. Callers must not treat such a path
/// like one that leads to nothing.
#[derive(Debug, thiserror::Error)]
#[error("{call} {}: {}, so it is unknown what the path leads to; hint: {}", path.display(), Name(*errno), hint(*errno))]
pub struct LookupError {
    /// The system call that failed, as an error message names it.
    pub call: &'static str,
    /// The path that was looked up.
    pub path: PathBuf,
    /// The error number of the call.
    pub errno: Errno,
}

impl LookupError {
    /// Returns the result of a system call; `None` if its error means that the path leads to nothing
    /// (`path_resolution(7)`). The delegate's own lookup of the path then fails as well.
    pub fn unless_missing<T>(
        call: &'static str,
        path: &Path,
        result: Result<T, Errno>,
    ) -> Result<Option<T>, Self> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(errno) if is_missing(errno) => Ok(None),
            Err(errno) => Err(Self::new(call, path, errno)),
        }
    }

    /// Creates the error of a system call on a path.
    #[must_use]
    pub fn new(call: &'static str, path: &Path, errno: Errno) -> Self {
        Self {
            call,
            path: path.to_owned(),
            errno,
        }
    }
}

/// Returns whether the error of a lookup means that the path leads to nothing (`path_resolution(7)`).
fn is_missing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG
    )
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => {
            "raise the container runtime's limit of open files (LimitNOFILE= of its systemd unit), and recreate \
             the container"
        }
        Errno::NFILE => "raise the node's limit of open files (sysctl fs.file-max)",
        Errno::NOMEM => "free memory on the node, and recreate the container",
        Errno::ACCESS | Errno::PERM => {
            "let root look the path up: FUSE needs the mount option allow_other, NFS the export option \
             no_root_squash"
        }
        Errno::NOTCONN | Errno::CONNABORTED => {
            "the FUSE program that served the file system of the path has ended: start it again, or unmount \
             the file system (umount --lazy)"
        }
        _ => {
            "see the kernel's log (dmesg) for the file system that the path is on, and recreate the container \
             once the path can be read"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_path_resolution_mean_that_a_file_is_missing() {
        for (errno, is_missing) in [
            (Errno::NOENT, true),
            (Errno::NOTDIR, true),
            (Errno::LOOP, true),
            (Errno::NAMETOOLONG, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOMEM, false),
            (Errno::IO, false),
            (Errno::ACCESS, false),
            (Errno::STALE, false),
            (Errno::NOTCONN, false),
            (Errno::AGAIN, false),
        ] {
            let found: Result<Option<()>, LookupError> =
                LookupError::unless_missing("statx", Path::new("/a"), Err(errno));
            assert_eq!(found.is_ok(), is_missing, "{errno:?}");
            if let Err(error) = found {
                let error = error.to_string();
                let name = Name(errno).to_string();
                assert!(error.starts_with(&format!("statx /a: {name}")), "{error}");
                assert!(error.contains("; hint: "), "{error}");
            }
        }
    }

    #[test]
    fn a_file_has_the_same_identity_by_every_path() {
        // On a disk, because a tmpfs, which /tmp may be, doesn't cache that a name is missing.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["a", "b"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        let identity = |name: &str| FileIdentity::look_up(&path(name)).unwrap();
        assert_eq!(identity("a"), identity("link"));
        for name in ["a", "file"] {
            let opened = std::fs::File::open(path(name)).unwrap();
            let opened = FileIdentity::from_descriptor(opened, &path(name)).unwrap();
            assert_eq!(identity(name), Some(opened), "{name}");
        }
        let [a, b, file] = ["a", "b", "file"].map(|name| identity(name).unwrap());
        assert_ne!(a.file(), b.file());
        assert_eq!(a.mount, b.mount);
        assert!(a.is_directory && !file.is_directory && !a.is_mount_root);
        for name in ["a", "file", "link"] {
            let cached = FileIdentity::from_cache(&path(name));
            assert_eq!(
                cached,
                CachedIdentity::Found(identity(name).unwrap()),
                "{name}"
            );
        }
        for missing in ["none", "file/x", "none/x"] {
            assert_eq!(identity(missing), None, "{missing}");
            let cached = FileIdentity::from_cache(&path(missing));
            assert!(!matches!(cached, CachedIdentity::Found(_)), "{missing}");
        }
        assert_eq!(
            FileIdentity::from_cache(&path("none")),
            CachedIdentity::Missing
        );
        assert!(
            FileIdentity::look_up(Path::new("/proc"))
                .unwrap()
                .unwrap()
                .is_mount_root
        );
    }
}
