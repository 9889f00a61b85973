//! Whether there are symbolic links on the way to a path.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crust_state::beneath;
use rustix::fs::{CWD, OFlags, ResolveFlags};

/// Whether an absolute path is its own resolved form: it is there, without a link and without `..`. Where
/// that can't be seen at once it isn't said. Opening for the path alone asks no server for more than the names.
pub(super) fn has_none(path: &Path) -> bool {
    let mut names = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    names.all(|name| name != b"..") && beneath::open(CWD, path, OFlags::PATH, resolve).is_ok()
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
            assert_eq!(has_none(&lab.join(path)), expected, "{path}");
        }
        assert!(has_none(Path::new("/")));
        assert!(has_none(Path::new("/proc")));
        assert!(!has_none(Path::new("/proc/self/fd")));
        assert!(!has_none(Path::new("/proc/thread-self/fd/0")));
    }
}
