//! Whether there are symbolic links on the way to a path, asked of many paths of few directories.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_state::beneath;
use rustix::fs::{AtFlags, CWD, FileType, OFlags, ResolveFlags, StatxFlags, statx};

/// Keeps the directory of the path that was asked about last: a pod's mounts have few.
#[derive(Debug, Default)]
pub(super) struct Links {
    directory: RefCell<Option<(PathBuf, OwnedFd)>>,
}

impl Links {
    /// Whether an absolute path is its own resolved form: it is there, without a link and without `..`. Where
    /// that can't be seen at once it isn't said. Waits for no server: what is cached of a file will do.
    pub(super) fn has_none(&self, path: &Path) -> bool {
        let mut names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
        if names.any(|name| name == b"..") {
            return false;
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return false;
        };
        let mut last = self.directory.borrow_mut();
        let is_last = |(last, _): &(PathBuf, _)| {
            last.as_os_str().as_bytes() == directory.as_os_str().as_bytes()
        };
        if !last.as_ref().is_some_and(is_last) {
            *last = straight(directory).map(|open| (directory.to_owned(), open));
        }
        let Some((_, directory)) = &*last else {
            return false;
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(directory, name, flags, StatxFlags::TYPE);
        found.is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) != FileType::Symlink)
    }
}

/// A directory, if no link leads to it.
fn straight(path: &Path) -> Option<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    beneath::open(CWD, path, OFlags::PATH | OFlags::DIRECTORY, resolve).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_with_a_link_or_dots_is_not_its_own_resolved_form() {
        let lab = tempfile::tempdir().unwrap();
        let lab = lab.path().canonicalize().unwrap();
        create_dir_all(lab.join("a/b")).unwrap();
        write(lab.join("a/file"), "").unwrap();
        symlink("b", lab.join("a/link")).unwrap();
        symlink("a", lab.join("other")).unwrap();
        let links = Links::default();
        for (path, expected) in [
            ("a/b", true),
            ("a/file", true),
            ("a/link", false),
            ("a/link/", false),
            ("a/none", false),
            ("other/b", false),
            ("other", false),
            ("a", true),
            ("a//b/", true),
            ("a/./b", true),
            ("a/b/..", false),
            ("a/../a/b", false),
            ("none/b", false),
            ("a/file/x", false),
            ("a/b", true),
        ] {
            assert_eq!(links.has_none(&lab.join(path)), expected, "{path}");
        }
        assert!(!links.has_none(Path::new("/")), "it has no directory");
        assert!(links.has_none(Path::new("/proc")));
        assert!(!links.has_none(Path::new("/proc/self/fd")));
        assert!(!links.has_none(Path::new("/proc/thread-self/fd/0")));
    }
}
