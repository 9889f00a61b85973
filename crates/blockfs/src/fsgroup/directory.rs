//! A directory of the volume, and how to come back to it.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use super::entry::{self, InodeId};

/// The longest path that a call takes (`PATH_MAX`), without its NUL.
const LONGEST_PATH: usize = 4095;

#[derive(Debug)]
pub(super) struct Directory {
    /// Empty for the root.
    name: CString,
    parent: Option<Arc<Directory>>,
    pub(super) identity: InodeId,
}

/// A directory that is held.
#[derive(Debug, Clone)]
pub(super) struct Open {
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

    /// Relative to the root: its own, or that of `name` in it.
    pub(super) fn path(&self, name: Option<&CStr>) -> PathBuf {
        let mut names = self.names();
        names.extend(name);
        let names = names.into_iter();
        names
            .map(|name| OsStr::from_bytes(name.to_bytes()))
            .collect()
    }

    /// Opens it once more, from the root down. Whether it is the same directory still is the
    /// caller's to see.
    pub(super) fn open_again(&self, root: &OwnedFd) -> Result<OwnedFd, Errno> {
        let names = self.names();
        let paths = split(&names);
        let Some((last, before)) = paths.split_last() else {
            return entry::open_directory(root, c".");
        };
        let mut above = None;
        for path in before {
            let from = above.as_ref().unwrap_or(root);
            above = Some(entry::open_directory(from.as_fd(), path)?);
        }
        entry::open_directory(above.as_ref().unwrap_or(root).as_fd(), last)
    }

    /// From the root's first to its own.
    fn names(&self) -> Vec<&CStr> {
        let upwards = std::iter::successors(Some(self), |it| it.parent.as_deref());
        let mut names = upwards
            .filter(|it| !it.is_root())
            .map(|it| it.name.as_c_str())
            .collect::<Vec<_>>();
        names.reverse();
        names
    }
}

impl Drop for Directory {
    /// One after the other: ten thousand levels would be as many calls in one another.
    fn drop(&mut self) {
        let mut above = self.parent.take();
        while let Some(directory) = above {
            above = Arc::into_inner(directory).and_then(|mut last| last.parent.take());
        }
    }
}

/// Joins names to as few paths as possible, none of them longer than a call takes.
fn split(names: &[&CStr]) -> Vec<CString> {
    let mut paths = Vec::new();
    let mut path = Vec::new();
    for name in names.iter().map(|name| name.to_bytes()) {
        if path.len() + 1 + name.len() > LONGEST_PATH {
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
    fn a_hundred_thousand_levels_are_dropped() {
        drop(chain(100_000));
    }

    #[test]
    fn a_path_longer_than_paths_are_is_several() {
        assert!(split(&[]).is_empty());
        assert_eq!(split(&[c"a", c"b"]), [c"a/b".to_owned()]);
        let long = CString::new([b'x'; 255]).expect("a name");
        let names = vec![long.as_c_str(); 40];
        let paths = split(&names);
        // 16 names of 255 and the 15 slashes between them are 4095.
        let lengths = paths.iter().map(|path| path.as_bytes().len());
        assert_eq!(lengths.collect::<Vec<_>>(), [4095, 4095, 8 * 256 - 1]);
    }
}
