//! openat2(2) with the retries that it asks for, and lookups of paths within a root directory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// How often a lookup is retried after EAGAIN. The kernel returns it when *anything* on the system was renamed or
/// mounted during a lookup that passed a `..`. It says nothing about this path, and a hundred in a row need an attacker
/// who renames in a loop.
const TRIES: u32 = 128;

/// Opens `path` below `directory`, always close-on-exec. Errors are openat2's own; EAGAIN only
/// after 128 of them.
pub fn open(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    open_or_create(directory, path, flags, Mode::empty(), resolve)
}

/// Opens `path` below `directory` as [`open`] does, and creates a file with `mode` if `flags` say so.
pub fn open_or_create(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        let opened = openat2(
            directory.as_fd(),
            path,
            flags | OFlags::CLOEXEC,
            mode,
            resolve,
        );
        match opened {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < TRIES => {
                tries += 1;
                std::thread::yield_now();
            }
            other => return other,
        }
    }
}

/// Opens an absolute path with `O_PATH` if the kernel has the whole path in its cache. Otherwise the lookup might wait
/// for a disk that hangs, or a server that is gone, and fails with EAGAIN (EINVAL before Linux 5.12).
pub fn open_cached(path: impl Arg, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::CACHED;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// The most links that are followed in a lookup, as in `path_resolution(7)`.
const MOST_LINKS: usize = 40;

/// Resolves the symbolic links of a path in the tree at `root`, as a delegate does before it mounts something there:
/// none leads out of the tree. Components that don't exist are kept, since the delegate creates them. So is the whole
/// path if the tree can't be opened.
#[must_use]
pub fn resolve_in_root(root: &Path, path: &Path) -> PathBuf {
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

/// Reads a symbolic link; `None` for anything else.
fn link(root: &OwnedFd, path: &Path) -> Option<PathBuf> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let found = open(root, path, flags, resolve).ok()?;
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
    fn what_was_just_looked_up_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        assert!(!missing.exists());
        let open = |path| open_cached(path, ResolveFlags::empty()).map(drop);
        assert_eq!(open(directory.path()), Ok(()));
        assert_eq!(open(&missing), Err(Errno::NOENT));
    }

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
                resolve_in_root(tree.path(), Path::new(path)),
                Path::new(leads_to),
                "{path}"
            );
        }
        // Nobody mounts there: that it ends is enough.
        let _ = resolve_in_root(tree.path(), Path::new("/circle/x"));
        let nowhere = resolve_in_root(&at("no/such"), Path::new("/a/../b"));
        assert_eq!(nowhere, Path::new("/b"));
    }
}
