//! Where a path in a container's root file system leads, before anything is mounted in it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::beneath;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, readlinkat};

/// As in `path_resolution(7)`.
const MOST_LINKS: usize = 40;

/// The path with the links of the tree at `root` followed, as the delegate follows them: none leads
/// out. What isn't there is taken as it is written, for the delegate makes it; so is all of it where
/// the tree can't be looked at.
#[must_use]
pub fn resolve(root: &Path, path: &Path) -> PathBuf {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags, Mode::empty()).ok();
    let mut here = PathBuf::from("/");
    let mut rest = VecDeque::from(names(path));
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(name);
        let target = root.as_ref().and_then(|root| link(root, &next));
        let Some(target) = target.filter(|_| links < MOST_LINKS) else {
            here = next;
            continue;
        };
        links += 1;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        for name in names(&target).into_iter().rev() {
            rest.push_front(name);
        }
    }
    here
}

/// What a link says; `None` for anything else.
fn link(root: &OwnedFd, path: &Path) -> Option<PathBuf> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let found = beneath::open(root, path, flags, resolve).ok()?;
    // ENOENT where it isn't a link.
    let target = readlinkat(found, "", Vec::with_capacity(256)).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
}

fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_within_the_tree() {
        let tree = tempfile::tempdir().unwrap();
        let at = |name: &str| tree.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        symlink("/a/b", at("absolute")).unwrap();
        symlink("a/../absolute/c", at("relative")).unwrap();
        symlink("../../../../etc", at("out")).unwrap();
        symlink("circle", at("circle")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        for (path, leads_to) in [
            ("/", "/"),
            ("/a/./b//", "/a/b"),
            ("/absolute/new/x", "/a/b/new/x"),
            ("relative", "/a/b/c"),
            ("/relative/../d", "/a/b/d"),
            ("/out/x", "/etc/x"),
            ("/../../a", "/a"),
            ("/file/x", "/file/x"),
            ("/new/absolute", "/new/absolute"),
        ] {
            assert_eq!(
                resolve(tree.path(), Path::new(path)),
                Path::new(leads_to),
                "{path}"
            );
        }
        // Nobody mounts there: that it ends is enough.
        let _ = resolve(tree.path(), Path::new("/circle/x"));
        let nowhere = resolve(&at("no/such"), Path::new("/a/../b"));
        assert_eq!(nowhere, Path::new("/b"));
    }
}
