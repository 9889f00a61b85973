//! Directories of the volume, which can be reopened by their paths.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use super::entry::{self, InodeId};

/// Maximum length of a path in bytes, without its NUL (`PATH_MAX`).
const MAX_PATH_LEN: usize = 4095;

#[derive(Debug)]
pub(super) struct Directory {
    /// Name in the parent; empty for the root.
    name: CString,
    parent: Option<Arc<Directory>>,
    pub(super) identity: InodeId,
}

/// A directory with a descriptor for listing it.
#[derive(Debug, Clone)]
pub(super) struct OpenDirectory {
    pub(super) directory: Arc<Directory>,
    pub(super) descriptor: Arc<OwnedFd>,
}

impl Directory {
    pub(super) fn root(identity: InodeId) -> Self {
        Self {
            name: CString::default(),
            parent: None,
            identity,
        }
    }

    pub(super) fn below(parent: &Arc<Self>, name: CString, identity: InodeId) -> Self {
        Self {
            name,
            parent: Some(Arc::clone(parent)),
            identity,
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns the path of this directory, or of `name` in it, relative to the root.
    pub(super) fn path(&self, name: Option<&CStr>) -> PathBuf {
        let mut names = self.names();
        names.extend(name);
        let names = names.into_iter();
        names
            .map(|name| OsStr::from_bytes(name.to_bytes()))
            .collect()
    }

    /// Opens the directory at this path again, starting at the root. The caller must check that it still is the same
    /// directory.
    pub(super) fn reopen(&self, root: &OwnedFd) -> Result<OwnedFd, Errno> {
        let names = self.names();
        let paths = join_paths(&names);
        let Some((last, parents)) = paths.split_last() else {
            return entry::open_directory(root, c".");
        };
        let mut parent = None;
        for path in parents {
            let from = parent.as_ref().unwrap_or(root);
            parent = Some(entry::open_directory(from.as_fd(), path)?);
        }
        entry::open_directory(parent.as_ref().unwrap_or(root).as_fd(), last)
    }

    /// Returns the names on the path from the root to this directory, outermost first.
    fn names(&self) -> Vec<&CStr> {
        let upwards = std::iter::successors(Some(self), |directory| directory.parent.as_deref());
        let mut names = upwards
            .filter(|directory| !directory.is_root())
            .map(|directory| directory.name.as_c_str())
            .collect::<Vec<_>>();
        names.reverse();
        names
    }
}

impl Drop for Directory {
    /// Drops the parents in a loop. The recursion of ten thousand levels could overflow the stack.
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some(directory) = parent {
            parent = Arc::into_inner(directory).and_then(|mut last| last.parent.take());
        }
    }
}

/// Joins names to as few paths as possible, each of at most [`MAX_PATH_LEN`] bytes.
fn join_paths(names: &[&CStr]) -> Vec<CString> {
    let mut paths = Vec::new();
    let mut path = Vec::new();
    for name in names.iter().map(|name| name.to_bytes()) {
        if path.len() + 1 + name.len() > MAX_PATH_LEN {
            paths.push(std::mem::take(&mut path));
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    if !path.is_empty() {
        paths.push(path);
    }
    let paths = paths.into_iter();
    paths.filter_map(|path| CString::new(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(levels: usize) -> Arc<Directory> {
        let mut directory = Arc::new(Directory::root((0, 0, 0)));
        for _ in 0..levels {
            directory = Arc::new(Directory::below(&directory, c"down".into(), (0, 0, 0)));
        }
        directory
    }

    #[test]
    fn the_path_begins_below_the_root() {
        assert_eq!(chain(0).path(None), PathBuf::new());
        assert_eq!(chain(0).path(Some(c"file")), PathBuf::from("file"));
        assert_eq!(
            chain(2).path(Some(c"file")),
            PathBuf::from("down/down/file")
        );
    }

    #[test]
    fn a_hundred_thousand_levels_are_dropped_without_recursion() {
        drop(chain(100_000));
    }

    #[test]
    fn names_that_exceed_path_max_are_joined_to_several_paths() {
        assert!(join_paths(&[]).is_empty());
        assert_eq!(join_paths(&[c"a", c"b"]), [c"a/b".to_owned()]);
        let long = CString::new([b'x'; 255]).expect("a name");
        let names = vec![long.as_c_str(); 40];
        let paths = join_paths(&names);
        // 16 names of 255 and the 15 slashes between them are 4095.
        let lengths = paths.iter().map(|path| path.as_bytes().len());
        assert_eq!(lengths.collect::<Vec<_>>(), [4095, 4095, 8 * 256 - 1]);
    }
}
