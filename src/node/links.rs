//! Whether there are symbolic links on the way to a path.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crust_state::beneath;
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The kind of an absolute path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It is its own resolved form, and leads over no mount point but the root directory's.
    OnRootMount,
    /// It is its own resolved form: it is there, without a link and without `..`.
    Plain,
    /// There are links, or nothing is there, or it can't be seen at once.
    Other,
}

/// Looks up a path. With `asks_for_mount` that is one call for a path on the root directory's mount and two for any
/// other, else one. Opening for the path alone asks no server for more than the names.
pub(super) fn way(path: &Path, asks_for_mount: bool) -> Way {
    let mut names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    if names.any(|name| name == b"..") {
        return Way::Other;
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = |resolve| beneath::open(CWD, path, OFlags::PATH, resolve);
    if asks_for_mount {
        match open(resolve | ResolveFlags::NO_XDEV) {
            Ok(_) => return Way::OnRootMount,
            Err(Errno::XDEV) => {}
            Err(_) => return Way::Other,
        }
    }
    open(resolve).map_or(Way::Other, |_| Way::Plain)
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
                let is_plain = way(&path, asks_for_mount) != Way::Other;
                assert_eq!(is_plain, expected, "{}", path.display());
            }
        }
        for (path, expected, on_mount) in [
            ("/", Way::Plain, Way::OnRootMount),
            ("/proc", Way::Plain, Way::Plain),
            ("/proc/sys", Way::Plain, Way::Plain),
            ("/proc/self/fd", Way::Other, Way::Other),
            ("/proc/thread-self/fd/0", Way::Other, Way::Other),
        ] {
            assert_eq!(way(Path::new(path), false), expected, "{path}");
            assert_eq!(way(Path::new(path), true), on_mount, "{path}");
        }
    }
}
