//! Making a subPath that isn't there (kubelet's `SafeMakeDir`).

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat};
use rustix::io::Errno;
use rustix::process::{geteuid, umask};

use super::{INSIDE, SubpathError};
use crate::openat2;

/// So often somebody may take away what was just found or made.
const TRIES: usize = 16;
/// Of the root's mode kubelet passes on these: not setuid, not sticky.
const PASSED_ON: u32 = 0o2777;

/// Makes what is missing of `relative`, component by component; the last one, opened. What
/// somebody else makes meanwhile is as good.
pub(super) fn directories(
    root: BorrowedFd<'_>,
    subpath: &Path,
    relative: &Path,
) -> Result<OwnedFd, SubpathError> {
    let stat = fstat(root).map_err(|errno| SubpathError::call("fstat", subpath, errno))?;
    let mode = Mode::from_raw_mode(stat.st_mode & PASSED_ON);
    let mut prefix = PathBuf::new();
    let mut parent =
        super::open(root, &prefix).map_err(|errno| SubpathError::of_lookup(subpath, errno))?;
    for name in relative {
        prefix.push(name);
        let step = Step {
            root,
            subpath,
            prefix: &prefix,
            parent: &parent,
            name,
        };
        // Each prefix from the root: a link on the way may climb, as long as it stays inside.
        parent = open_or_make(step, mode)?;
    }
    Ok(parent)
}

/// One directory on the way to a subPath.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// The volume's root.
    root: BorrowedFd<'a>,
    /// The whole subPath, for errors.
    subpath: &'a Path,
    /// The way from the root to this directory.
    prefix: &'a Path,
    /// The directory before this one, opened.
    parent: &'a OwnedFd,
    /// The last component of `prefix`.
    name: &'a OsStr,
}

/// Opens a directory; makes it if need be.
fn open_or_make(step: Step<'_>, mode: Mode) -> Result<OwnedFd, SubpathError> {
    let Step {
        root,
        subpath,
        prefix,
        parent,
        name,
    } = step;
    for _ in 0..TRIES {
        match super::open(root, prefix) {
            Err(Errno::NOENT) => {}
            opened => return opened.map_err(|errno| SubpathError::of_lookup(subpath, errno)),
        }
        match made(parent, name, mode) {
            Ok(()) => {
                if let Some(made) = open_made(parent, name, mode)
                    .map_err(|errno| SubpathError::call("fchmod", subpath, errno))?
                {
                    return Ok(made);
                }
            }
            Err(Errno::EXIST) if is_link(parent, name) => {
                // There, and still not found: what it points to isn't.
                let subpath = subpath.into();
                return match super::open(root, prefix) {
                    Err(Errno::NOENT) => Err(SubpathError::DanglingLink { subpath }),
                    opened => opened.map_err(|errno| SubpathError::of_lookup(&subpath, errno)),
                };
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(of_mkdir(subpath, errno)),
        }
    }
    let subpath = subpath.into();
    Err(SubpathError::KeepsChanging { subpath })
}

/// With all of the mode that mkdir(2) gives: whoever finds it when we were killed won't change it.
fn made(parent: &OwnedFd, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    let callers = umask(Mode::empty());
    let result = mkdirat(parent, name, mode);
    umask(callers);
    result
}

fn of_mkdir(subpath: &Path, errno: Errno) -> SubpathError {
    let given = subpath.to_owned();
    match errno {
        Errno::ROFS => SubpathError::ReadOnly { subpath: given },
        // The parent is a file, or was removed.
        Errno::NOTDIR => SubpathError::NotADirectory { subpath: given },
        Errno::NOENT => SubpathError::KeepsChanging { subpath: given },
        errno => SubpathError::call("mkdirat", subpath, errno),
    }
}

/// The directory just made, with the rest of its mode: setgid, and what a default ACL kept from it. `None` when
/// something else is in its place by now: that may be a directory that isn't ours to change.
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
    // As everywhere else: a handle, not an open directory.
    openat2::open(&directory, c".", OFlags::PATH, resolve).map(Some)
}

fn is_link(parent: &OwnedFd, name: &OsStr) -> bool {
    use rustix::fs::{AtFlags, statat};
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}
