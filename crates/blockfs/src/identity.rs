//! The identity of a directory or file: the same by whichever path and mount it is reached.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::errno::Name;
use crate::{DeviceNumber, openat2};

/// `STATX_MNT_ID_UNIQUE` of `linux/stat.h` (Linux 6.8). An older kernel gives `STATX_MNT_ID` where both are
/// asked for.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The id of a mount. Ids of the two kinds are never equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountId {
    /// No other mount has it, or ever had it since the boot (Linux 6.8).
    Unique(u64),
    /// mountinfo's id. It is given to another mount once its own is gone.
    Reusable(u64),
}

/// The identity of the directory or file that a path leads to, and the mount that it is reached by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `st_dev`: in each of btrfs's subvolumes another one.
    pub device: DeviceNumber,
    /// `st_ino`, unique on its file system while the file exists.
    pub inode: u64,
    /// The mount that it is reached by.
    pub mount: MountId,
    /// It is that mount's root.
    pub is_mount_root: bool,
    /// It is a directory.
    pub is_directory: bool,
}

impl Identity {
    /// Returns the identity of what a path leads to, links followed; `None` if it leads to nothing. One
    /// statx(2), which opens no device. Attributes are taken as they are cached, so that no file server is
    /// waited for beyond the lookup of the names.
    pub fn of(path: &Path) -> Result<Option<Self>, LookupError> {
        let stat = statx(CWD, path, AtFlags::NO_AUTOMOUNT);
        let stat = LookupError::unless_missing("statx", path, stat)?;
        Ok(stat.map(|stat| Self::from_statx(&stat)))
    }

    /// Returns the identity of what was opened, be it for the path alone (`O_PATH`). `path` is for the error.
    pub fn of_opened(opened: impl AsFd, path: &Path) -> Result<Self, LookupError> {
        let stat = statx(opened, Path::new(""), AtFlags::EMPTY_PATH);
        let stat = stat.map_err(|errno| LookupError::new("statx", path, errno))?;
        Ok(Self::from_statx(&stat))
    }

    /// Returns the identity of what a path leads to, links followed, if the kernel can tell it from memory.
    #[must_use]
    pub fn at_once(path: &Path) -> CachedIdentity {
        match openat2::open_cached(path, ResolveFlags::empty()) {
            Ok(opened) => {
                Self::of_opened(opened, path).map_or(CachedIdentity::Unknown, CachedIdentity::Found)
            }
            Err(errno) if is_missing(errno) => CachedIdentity::Nothing,
            Err(_) => CachedIdentity::Unknown,
        }
    }

    /// Has the automount whose trigger a path leads to mounted, and returns the identity of what is there then;
    /// `None` if that is nothing. Waits for the daemon of the automount, as bind mounts of the path do.
    pub fn of_automount(path: &Path) -> Result<Option<Self>, LookupError> {
        // Without OPEN_TREE_CLONE this opens for the path alone, but with the lookup of a bind mount.
        let opened = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLOEXEC);
        let opened = LookupError::unless_missing("open_tree", path, opened)?;
        opened
            .map(|opened| Self::of_opened(opened, path))
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

    /// Returns what tells a directory or file from all others of the node: `st_dev` and inode.
    #[must_use]
    pub fn file(&self) -> (DeviceNumber, u64) {
        (self.device, self.inode)
    }
}

/// The answer to a lookup that waits for no disk and no server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedIdentity {
    /// The path leads to nothing.
    Nothing,
    /// The path leads to this directory or file.
    Found(Identity),
    /// The kernel would have to ask a disk or a server, or the lookup failed.
    Unknown,
}

fn statx(place: impl AsFd, path: &Path, flags: AtFlags) -> Result<Statx, Errno> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID | MNT_ID_UNIQUE;
    rustix::fs::statx(place, path, flags | AtFlags::STATX_DONT_SYNC, wanted)
}

/// A path couldn't be looked up, though it may lead to something. It must not be taken for a path that leads to
/// nothing.
#[derive(Debug, thiserror::Error)]
#[error("{call} {}: {}, so it can't be told what the path leads to; hint: {}", path.display(), Name(*errno), hint(*errno))]
pub struct LookupError {
    /// The system call that failed, as an error message names it.
    pub call: &'static str,
    /// The path that was looked up.
    pub path: PathBuf,
    /// The error number of the call.
    pub errno: Errno,
}

impl LookupError {
    /// Returns what a call gave; `None` where its error says that the path leads to nothing
    /// (`path_resolution(7)`). Then the delegate's own lookup of it fails as well.
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

    /// Returns the error of a call.
    #[must_use]
    pub fn new(call: &'static str, path: &Path, errno: Errno) -> Self {
        Self {
            call,
            path: path.to_owned(),
            errno,
        }
    }
}

/// Whether the error of a lookup says that the path leads to nothing (`path_resolution(7)`).
fn is_missing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG
    )
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => {
            "raise the container runtime's limit of open files (LimitNOFILE= of its systemd unit), and create \
             the container again"
        }
        Errno::NFILE => "raise the node's limit of open files (sysctl fs.file-max)",
        Errno::NOMEM => "free memory on the node, and create the container again",
        Errno::ACCESS | Errno::PERM => {
            "root must be able to look the path up: on FUSE that takes the option allow_other, on NFS the \
             export option no_root_squash"
        }
        Errno::NOTCONN | Errno::CONNABORTED => {
            "the FUSE program that served the file system of the path has ended: start it again, or unmount \
             the file system (umount --lazy)"
        }
        _ => {
            "see the kernel's log (dmesg) for the file system that the path is on, and create the container \
             again once the path can be read"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_says_so_means_that_nothing_is_there() {
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
    fn a_file_is_the_same_by_whichever_path_and_another_is_not() {
        let lab = tempfile::tempdir().unwrap();
        let path = |name: &str| lab.path().join(name);
        for name in ["a", "b"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        let of = |name: &str| Identity::of(&path(name)).unwrap();
        assert_eq!(of("a"), of("link"));
        for name in ["a", "file"] {
            let opened = std::fs::File::open(path(name)).unwrap();
            let opened = Identity::of_opened(opened, &path(name)).unwrap();
            assert_eq!(of(name), Some(opened), "{name}");
        }
        let [a, b, file] = ["a", "b", "file"].map(|name| of(name).unwrap());
        assert_ne!(a.file(), b.file());
        assert_eq!(a.mount, b.mount);
        assert!(a.is_directory && !file.is_directory && !a.is_mount_root);
        for name in ["a", "file", "link"] {
            let at_once = Identity::at_once(&path(name));
            assert_eq!(at_once, CachedIdentity::Found(of(name).unwrap()), "{name}");
        }
        for missing in ["none", "file/x", "none/x"] {
            assert_eq!(of(missing), None, "{missing}");
            let at_once = Identity::at_once(&path(missing));
            assert!(!matches!(at_once, CachedIdentity::Found(_)), "{missing}");
        }
        assert_eq!(Identity::at_once(&path("none")), CachedIdentity::Nothing);
        assert!(
            Identity::of(Path::new("/proc"))
                .unwrap()
                .unwrap()
                .is_mount_root
        );
    }
}
