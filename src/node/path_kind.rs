//! The kind of a path: whether symbolic links are on the way, and whether it is on the root directory's mount.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crust_blockfs::openat2;
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The kind of an absolute path.
#[derive(Debug)]
pub(super) enum PathKind {
    /// It is its own resolved form, and leads over no mount point but the root directory's.
    OnRootMount,
    /// It is its own resolved form: it is there, without a link and without `..`. What it leads to was opened,
    /// for the path alone.
    Plain(OwnedFd),
    /// There are links, or nothing is there, or it can't be seen at once.
    Other,
}

impl PathKind {
    /// Looks up a path. With `asks_for_mount` that is one call for a path on the root directory's mount and two for
    /// any other, else one. Opening for the path alone asks no server for more than the names.
    pub(super) fn of(path: &Path, asks_for_mount: bool) -> Self {
        let mut names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
        if names.any(|name| name == b"..") {
            return Self::Other;
        }
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let open = |resolve| openat2::open(CWD, path, OFlags::PATH, resolve);
        if asks_for_mount {
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
    fn a_path_with_a_link_or_dots_is_not_its_own_resolved_form() {
        let lab = tempfile::tempdir().unwrap();
        let lab = lab.path().canonicalize().unwrap();
        create_dir_all(lab.join("a/b")).unwrap();
        write(lab.join("a/file"), "").unwrap();
        symlink("b", lab.join("a/link")).unwrap();
        symlink("a", lab.join("other")).unwrap();
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
            let path = lab.join(path);
            for asks_for_mount in [false, true] {
                let kind = PathKind::of(&path, asks_for_mount);
                let is_plain = !matches!(kind, PathKind::Other);
                assert_eq!(is_plain, expected, "{}", path.display());
            }
        }
        let name = |path: &str, asks_for_mount| match PathKind::of(Path::new(path), asks_for_mount)
        {
            PathKind::OnRootMount => "on root mount",
            PathKind::Plain(_) => "plain",
            PathKind::Other => "other",
        };
        for (path, expected, on_mount) in [
            ("/", "plain", "on root mount"),
            ("/proc", "plain", "plain"),
            ("/proc/sys", "plain", "plain"),
            ("/proc/self/fd", "other", "other"),
            ("/proc/thread-self/fd/0", "other", "other"),
        ] {
            assert_eq!(name(path, false), expected, "{path}");
            assert_eq!(name(path, true), on_mount, "{path}");
        }
    }
}
