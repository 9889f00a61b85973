//! Makes the missing directories of a subPath (as kubelet's `SafeMakeDir`).

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat};
use rustix::io::Errno;
use rustix::process::{geteuid, umask};

use super::{INSIDE, SubpathError};
use crate::openat2;

/// Maximum number of attempts to open or make a directory that other processes keep removing or replacing.
const MAX_ATTEMPTS: usize = 16;
/// Bits of the root's mode that new directories get, as with kubelet: all except setuid and sticky.
const INHERITED_MODE: u32 = 0o2777;

/// Makes the missing directories of `relative`, one component at a time, and returns a descriptor of the last one.
/// Directories that other processes make meanwhile are used.
pub(super) fn directories(
    root: BorrowedFd<'_>,
    subpath: &Path,
    relative: &Path,
) -> Result<OwnedFd, SubpathError> {
    let stat = fstat(root).map_err(|errno| SubpathError::call("fstat", subpath, errno))?;
    let mode = Mode::from_raw_mode(stat.st_mode & INHERITED_MODE);
    let mut prefix = PathBuf::new();
    let mut parent =
        super::open(root, &prefix).map_err(|errno| SubpathError::from_lookup(subpath, errno))?;
    for name in relative {
        prefix.push(name);
        let component = PathComponent {
            root,
            subpath,
            prefix: &prefix,
            parent: &parent,
            name,
        };
        // Each prefix is resolved from the root. A symbolic link may contain `..`, as long as it stays in the volume.
        parent = open_or_make(component, mode)?;
    }
    Ok(parent)
}

/// A directory on the path of a subPath.
#[derive(Clone, Copy)]
struct PathComponent<'a> {
    /// Root of the volume.
    root: BorrowedFd<'a>,
    /// The whole subPath, for errors.
    subpath: &'a Path,
    /// Path from the root to this directory.
    prefix: &'a Path,
    /// Descriptor of the parent directory.
    parent: &'a OwnedFd,
    /// Name of this directory in its parent.
    name: &'a OsStr,
}

/// Opens a directory, and makes it first if it doesn't exist.
fn open_or_make(component: PathComponent<'_>, mode: Mode) -> Result<OwnedFd, SubpathError> {
    let PathComponent {
        root,
        subpath,
        prefix,
        parent,
        name,
    } = component;
    for _ in 0..MAX_ATTEMPTS {
        match super::open(root, prefix) {
            Err(Errno::NOENT) => {}
            opened => return opened.map_err(|errno| SubpathError::from_lookup(subpath, errno)),
        }
        match make(parent, name, mode) {
            Ok(()) => {
                if let Some(directory) = open_made(parent, name, mode)
                    .map_err(|errno| SubpathError::call("fchmod", subpath, errno))?
                {
                    return Ok(directory);
                }
            }
            Err(Errno::EXIST) if is_link(parent, name) => {
                // The link exists, but its target doesn't.
                let subpath = subpath.into();
                return match super::open(root, prefix) {
                    Err(Errno::NOENT) => Err(SubpathError::DanglingLink { subpath }),
                    opened => opened.map_err(|errno| SubpathError::from_lookup(&subpath, errno)),
                };
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(mkdir_error(subpath, errno)),
        }
    }
    let subpath = subpath.into();
    Err(SubpathError::KeepsChanging { subpath })
}

/// Makes a directory with all mode bits that mkdir(2) sets, whatever the umask is. If this process is killed before it
/// sets the other bits, later calls find the directory and don't change it.
fn make(parent: &OwnedFd, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    let previous = umask(Mode::empty());
    let result = mkdirat(parent, name, mode);
    umask(previous);
    result
}

fn mkdir_error(subpath: &Path, errno: Errno) -> SubpathError {
    let given = subpath.to_owned();
    match errno {
        Errno::ROFS => SubpathError::ReadOnly { subpath: given },
        // ENOTDIR: the parent is a file. ENOENT: the parent was removed.
        Errno::NOTDIR => SubpathError::NotADirectory { subpath: given },
        Errno::NOENT => SubpathError::KeepsChanging { subpath: given },
        errno => SubpathError::call("mkdirat", subpath, errno),
    }
}

/// Opens a directory that was just made, and sets its whole mode: mkdir(2) doesn't set setgid, and a default ACL masks
/// other bits. Returns `None` if something else has that name now; this process must not change another's directory.
fn open_made(parent: &OwnedFd, name: &OsStr, mode: Mode) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let resolve = INSIDE | ResolveFlags::NO_SYMLINKS;
    let directory = match openat2::open(parent.as_fd(), name, flags, resolve) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if fstat(&directory)?.st_uid != geteuid().as_raw() {
        return Ok(None);
    }
    fchmod(&directory, mode)?;
    // The descriptors of resolved subPaths have O_PATH.
    openat2::open(&directory, c".", OFlags::PATH, resolve).map(Some)
}

fn is_link(parent: &OwnedFd, name: &OsStr) -> bool {
    use rustix::fs::{AtFlags, statat};
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}
