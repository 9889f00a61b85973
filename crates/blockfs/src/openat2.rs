//! Calls openat2(2) with the necessary retries, and resolves paths within a root directory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// The number of times that a lookup is retried after EAGAIN.
///
/// The kernel returns EAGAIN if *anything* on the system was renamed or mounted during a lookup with a `..`, even if
/// this path isn't affected. Only an attacker who renames in a loop can cause a hundred in a row.
const MAX_RETRIES: u32 = 128;

/// Opens `path` relative to `directory`, always close-on-exec. Fails with the error of openat2(2). EAGAIN is returned
/// only after 128 retries.
pub fn open(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    open_or_create(directory, path, flags, Mode::empty(), resolve)
}

/// Opens `path` as [`open`] does, and creates a file with `mode` if `flags` include `O_CREAT`.
pub fn open_or_create(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut retries = 0;
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
            Err(Errno::AGAIN) if retries < MAX_RETRIES => {
                retries += 1;
                std::thread::yield_now();
            }
            other => return other,
        }
    }
}

/// Opens an absolute path with `O_PATH` if the kernel has the whole path in its cache. Otherwise fails with EAGAIN
/// (EINVAL before Linux 5.12) instead of waiting for a disk that hangs or a file server that is gone.
pub fn open_cached(path: impl Arg, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::CACHED;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// The largest number of symbolic links that one lookup follows, as in `path_resolution(7)`.
const MAX_LINKS: usize = 40;

/// Resolves the symbolic links of a path in the tree at `root`, as a delegate does before it mounts something there.
///
/// No link leads out of the tree. Components that don't exist are kept, since the delegate creates them. If the tree
/// can't be opened, no link is resolved.
#[must_use]
pub fn resolve_in_root(root: &Path, path: &Path) -> PathBuf {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags, Mode::empty()).ok();
    let mut resolved = PathBuf::from("/");
    let mut rest = VecDeque::from(names(path));
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(name);
        let target = root.as_ref().and_then(|root| read_link(root, &next));
        let Some(target) = target.filter(|_| links < MAX_LINKS) else {
            resolved = next;
            continue;
        };
        links += 1;
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        for name in names(&target).into_iter().rev() {
            rest.push_front(name);
        }
    }
    resolved
}

/// Reads a symbolic link; `None` for anything else.
fn read_link(root: &OwnedFd, path: &Path) -> Option<PathBuf> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let found = open(root, path, flags, resolve).ok()?;
    // Fails with ENOENT if this isn't a symbolic link.
    let target = readlinkat(found, "", Vec::with_capacity(256)).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
}

/// Returns the names in a path, and its `..` components.
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
    fn a_path_that_was_just_looked_up_is_cached() {
        // On a disk, because a tmpfs, which /tmp may be, doesn't cache that a name is missing.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
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
        // The result doesn't matter, as long as the lookup ends.
        let _ = resolve_in_root(tree.path(), Path::new("/circle/x"));
        let nowhere = resolve_in_root(&at("no/such"), Path::new("/a/../b"));
        assert_eq!(nowhere, Path::new("/b"));
    }
}
