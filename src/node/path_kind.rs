//! Classifies paths: whether they contain symbolic links, and whether they are on the root directory's mount.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crust_blockfs::openat2;
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The kind of an absolute path.
#[derive(Debug)]
pub(super) enum PathKind {
    /// The path exists, contains no symbolic links or `..`, and crosses no mount point.
    OnRootMount,
    /// The path exists and contains no symbolic links or `..`. The descriptor was opened with `O_PATH`.
    Plain(OwnedFd),
    /// The path contains symbolic links or `..`, or can't be opened.
    Other,
}

impl PathKind {
    /// Looks up an absolute path. Returns [`Self::OnRootMount`] only if `check_root_mount` is set.
    ///
    /// This takes one system call, or two if `check_root_mount` is set and the path is on another mount. `O_PATH` only
    /// looks up names, on a network file system too.
    pub(super) fn lookup(path: &Path, check_root_mount: bool) -> Self {
        let mut names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
        if names.any(|name| name == b"..") {
            return Self::Other;
        }
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let open = |resolve| openat2::open(CWD, path, OFlags::PATH, resolve);
        if check_root_mount {
            match open(resolve | ResolveFlags::NO_XDEV) {
                Ok(_) => return Self::OnRootMount,
                Err(Errno::XDEV) => {}
                Err(_) => return Self::Other,
            }
        }
        open(resolve).map_or(Self::Other, Self::Plain)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_with_a_link_or_parent_component_is_not_plain() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        create_dir_all(dir.join("a/b")).unwrap();
        write(dir.join("a/file"), "").unwrap();
        symlink("b", dir.join("a/link")).unwrap();
        symlink("a", dir.join("other")).unwrap();
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
            let path = dir.join(path);
            for check_root_mount in [false, true] {
                let kind = PathKind::lookup(&path, check_root_mount);
                let is_plain = !matches!(kind, PathKind::Other);
                assert_eq!(is_plain, expected, "{}", path.display());
            }
        }
        let name = |path: &str, check_root_mount| match PathKind::lookup(
            Path::new(path),
            check_root_mount,
        ) {
            PathKind::OnRootMount => "on root mount",
            PathKind::Plain(_) => "plain",
            PathKind::Other => "other",
        };
        for (path, without_check, with_check) in [
            ("/", "plain", "on root mount"),
            ("/proc", "plain", "plain"),
            ("/proc/sys", "plain", "plain"),
            ("/proc/self/fd", "other", "other"),
            ("/proc/thread-self/fd/0", "other", "other"),
        ] {
            assert_eq!(name(path, false), without_check, "{path}");
            assert_eq!(name(path, true), with_check, "{path}");
        }
    }
}
