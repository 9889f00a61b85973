//! Removes a directory tree that a workload has written.
//!
//! The tree is walked by descriptors, never by paths: symbolic links aren't followed, and mounts aren't entered
//! (openat2(2), `RESOLVE_NO_XDEV`). Trees of any depth need three descriptors, because a directory that isn't empty is
//! moved to the top before it is read.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crust_blockfs::openat2;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::OperationError;

/// The prefix of the names of directories that were moved to the top.
const MOVED_PREFIX: &str = ".moved";

/// Removes a directory tree, if it exists. `path` itself must not be writable by a workload. Fails with `EXDEV` or
/// `EBUSY` if something is mounted in the tree; the mount is kept.
pub(super) fn remove(path: &Path) -> Result<(), OperationError> {
    let call_error = |call| OperationError::system(call, path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = match openat(CWD, path, flags, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(call_error("open")(errno)),
    };
    let mut moved = 0;
    loop {
        let entries = names(&top).map_err(call_error("getdents64"))?;
        if entries.is_empty() {
            break;
        }
        for name in &entries {
            if unlink(&top, name).map_err(call_error("unlinkat"))? {
                continue;
            }
            let directory = open(&top, name).map_err(call_error("openat2"))?;
            for name in names(&directory).map_err(call_error("getdents64"))? {
                if !unlink(&directory, &name).map_err(call_error("unlinkat"))? {
                    let renamed = move_to_top(&directory, &name, &top, &mut moved);
                    renamed.map_err(call_error("renameat2"))?;
                }
            }
            // Files that a workload creates in the meantime are removed in the next round.
            unlink(&top, name).map_err(call_error("unlinkat"))?;
        }
    }
    unlinkat(CWD, path, AtFlags::REMOVEDIR).map_err(call_error("rmdir"))
}

/// Removes a file or an empty directory. Returns whether it is gone; a directory that isn't empty is kept.
fn unlink(directory: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOTDIR) => unlinkat(directory, name, AtFlags::empty()).map(|()| true),
        Err(errno) => Err(errno),
    }
}

fn open(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2::open(directory, name, flags, resolve)
}

/// Moves a directory to the top of the tree, under a free name.
fn move_to_top(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> Result<(), Errno> {
    loop {
        *moved += 1;
        let new_name = format!("{MOVED_PREFIX}-{moved}");
        match renameat_with(from, name, top, new_name, RenameFlags::NOREPLACE) {
            // The workload has created a file of that name.
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
    fn the_tree_is_removed_and_the_targets_of_links_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, kept) = (dir.path().join("tree"), dir.path().join("kept"));
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
        remove(&tree).expect("the tree is gone");
        symlink(&kept, &tree).unwrap();
        let error = remove(&tree).unwrap_err().to_string();
        assert!(
            error.contains("ENOTDIR") || error.contains("ELOOP"),
            "{error}"
        );
        assert!(kept.join("file").exists());
    }

    /// The tree is deeper than the longest path, and than the number of descriptors of a process.
    #[test]
    fn a_tree_can_have_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = openat(CWD, &tree, flags, Mode::empty()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&directory, "e", Mode::RWXU).unwrap();
            directory = openat(&directory, "d", flags, Mode::empty()).unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
