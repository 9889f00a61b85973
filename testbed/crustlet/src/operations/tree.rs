//! Removes a tree that a workload has written.
//!
//! By descriptors, never by a path that somebody has written: no link is followed, and no mount is entered, whoever
//! made it and whatever is behind it (openat2(2), `RESOLVE_NO_XDEV`). However deep it is, it takes three descriptors:
//! what isn't empty is moved up before it is looked into.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crust_blockfs::openat2;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::OperationError;

/// The name of a directory that was moved up.
const MOVED: &str = ".moved";

/// Removes a directory with all that is in it, if there is one. `path` must be crustlet's own. Fails with `EXDEV` or
/// `EBUSY` if something is mounted in it, which stays.
pub(super) fn remove(path: &Path) -> Result<(), OperationError> {
    let failed = |call| OperationError::system(call, path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = match openat(CWD, path, flags, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("open")(errno)),
    };
    let mut moved = 0;
    loop {
        let below = names(&top).map_err(failed("getdents64"))?;
        if below.is_empty() {
            break;
        }
        for name in &below {
            if unlink(&top, name).map_err(failed("unlinkat"))? {
                continue;
            }
            let directory = open(&top, name).map_err(failed("openat2"))?;
            for name in names(&directory).map_err(failed("getdents64"))? {
                if !unlink(&directory, &name).map_err(failed("unlinkat"))? {
                    let up = move_up(&directory, &name, &top, &mut moved);
                    up.map_err(failed("renameat2"))?;
                }
            }
            // Who writes meanwhile has what is left removed in the next round.
            unlink(&top, name).map_err(failed("unlinkat"))?;
        }
    }
    unlinkat(CWD, path, AtFlags::REMOVEDIR).map_err(failed("rmdir"))
}

/// Removes a file or an empty directory. Whether it is gone: one that isn't empty stays.
fn unlink(at: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOTDIR) => unlinkat(at, name, AtFlags::empty()).map(|()| true),
        Err(errno) => Err(errno),
    }
}

fn open(at: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2::open(at, name, flags, resolve)
}

fn move_up(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> Result<(), Errno> {
    loop {
        *moved += 1;
        let place = format!("{MOVED}-{moved}");
        match renameat_with(from, name, top, place, RenameFlags::NOREPLACE) {
            // A workload's own by that name.
            Err(Errno::EXIST) => {}
            renamed => return renamed,
        }
    }
}

fn names(directory: impl AsFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn all_goes_and_nothing_that_links_lead_to() {
        let place = tempfile::tempdir().unwrap();
        let (tree, kept) = (place.path().join("tree"), place.path().join("kept"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "data").unwrap();
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir_all(tree.join(".moved-1/deeper")).unwrap();
        for file in ["file", "a/file", "a/b/c/file", ".moved-1/deeper/file"] {
            fs::write(tree.join(file), "").unwrap();
        }
        for link in ["link", "a/b/link"] {
            symlink(&kept, tree.join(link)).unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists());
        assert!(kept.join("file").exists());
        remove(&tree).expect("it is gone");
        symlink(&kept, &tree).unwrap();
        let error = remove(&tree).unwrap_err().to_string();
        assert!(
            error.contains("ENOTDIR") || error.contains("ELOOP"),
            "{error}"
        );
        assert!(kept.join("file").exists());
    }

    /// Longer than a path may be, and than a process has descriptors.
    #[test]
    fn it_may_be_as_deep_as_a_workload_likes() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, &tree, flags, Mode::empty()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&at, "e", Mode::RWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
