//! Checks whether root alone can change what a path leads to, and whether this process is root on the node.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use rustix::fs::{Access, access};

/// The reason why a path isn't trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A component of the path can be changed by a user other than root, or is of the wrong kind.
    #[error(
        "{} {reason}; hint: make root the owner and only writer of it and of the directories above it (chown \
         root:root, chmod go-w)",
        path.display()
    )]
    Untrusted {
        /// The path up to that component.
        path: PathBuf,
        reason: &'static str,
    },
    #[error("lstat {}: {source}", path.display())]
    Lstat {
        /// The path up to the component that lstat(2) failed for.
        path: PathBuf,
        source: io::Error,
    },
    /// The path of the first link that isn't followed any more.
    #[error("{}: too many symbolic links; hint: check whether a link leads to itself", .0.display())]
    TooManyLinks(PathBuf),
    #[error("{} can't be executed", .0.display())]
    NotExecutable(PathBuf),
}

impl TrustError {
    fn is_not_found(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound};
        let Self::Lstat { source, .. } = self else {
            return false;
        };
        matches!(source.kind(), NotFound | NotADirectory)
    }
}

/// The kind of file that a path has to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file.
    File,
    Directory,
    /// A directory that its group may write too, as `/var/log` is on Ubuntu (`root:syslog`, 0775).
    LogDirectory,
}

/// The largest number of symbolic links that are followed, as in `path_resolution(7)`.
const MAX_LINKS: usize = 40;

/// Whether the path may lead through world-writable directories with the sticky bit, such as `/tmp`. There, others can
/// add names of their own. They can't rename or remove a file that root owns, and root has to own the next component,
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StickyDirectories {
    Allowed,
    Refused,
}

/// Resolves an absolute path below the root directory `root`, and checks that root alone can change each directory and
/// each symbolic link on the way, and the file itself. So no other user can change what the path leads to between this
/// check and its use.
///
/// The given path and the returned path are paths as seen by a process whose root directory is `root`.
pub fn resolve(root: &Path, path: &Path, kind: PathKind) -> Result<PathBuf, TrustError> {
    follow(root, path, kind, StickyDirectories::Refused).map_err(|(_, error)| error)
}

/// Resolves a path of the node, and checks that only root can make it lead to another file. Returns `None` if a
/// component doesn't exist. A directory on the way may be world-writable with the sticky bit, like `/tmp`.
pub(crate) fn resolve_existing(path: &Path, kind: PathKind) -> Result<Option<PathBuf>, TrustError> {
    match follow(Path::new("/"), path, kind, StickyDirectories::Allowed) {
        Ok(real) => Ok(Some(real)),
        Err((_, error)) if error.is_not_found() => Ok(None),
        Err((_, error)) => Err(error),
    }
}

/// Resolves the path of a program as [`resolve`] does, and checks that it can be executed.
pub fn resolve_program(path: &Path) -> Result<PathBuf, TrustError> {
    let real = resolve(Path::new("/"), path, PathKind::File)?;
    match access(&real, Access::EXEC_OK) {
        Ok(()) => Ok(real),
        Err(_) => Err(TrustError::NotExecutable(real)),
    }
}

/// Checks a directory as [`resolve`] does. Its last components may be missing: only root can create them.
pub fn check_directory(root: &Path, path: &Path) -> Result<(), TrustError> {
    let sticky = StickyDirectories::Refused;
    match follow(root, path, PathKind::Directory, sticky) {
        Err((parent, error)) if error.is_not_found() => {
            check_component(root, &parent, Some(PathKind::Directory), sticky).map(drop)
        }
        other => other.map(drop).map_err(|(_, error)| error),
    }
}

/// Resolves a path component by component. An error comes with the path that was resolved until then.
fn follow(
    root: &Path,
    path: &Path,
    kind: PathKind,
    sticky: StickyDirectories,
) -> Result<PathBuf, (PathBuf, TrustError)> {
    let mut resolved = PathBuf::from("/");
    // The components that are left, the next one last.
    let mut rest = Vec::new();
    push_components(&mut rest, path);
    let mut links = 0;
    if let Err(error) = check_component(root, &resolved, None, sticky) {
        return Err((resolved, error));
    }
    while let Some(name) = rest.pop() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(name);
        let last = rest.is_empty().then_some(kind);
        let target = match check_component(root, &next, last, sticky) {
            Ok(Some(target)) => target,
            Ok(None) => {
                resolved = next;
                continue;
            }
            Err(error) => return Err((resolved, error)),
        };
        links += 1;
        if links > MAX_LINKS {
            return Err((resolved, TrustError::TooManyLinks(next)));
        }
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        push_components(&mut rest, &target);
    }
    Ok(resolved)
}

/// Pushes the components of `path` onto `rest`, so that its first one is popped next.
fn push_components(rest: &mut Vec<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => rest.push(name.to_owned()),
            Component::ParentDir => rest.push("..".into()),
            _ => {}
        }
    }
}

/// Checks the last component of `path`, whose parent is resolved already. Returns the link's target if it is a
/// symbolic link. `last` is the required kind of the whole path's last component; `None` for the components before it.
fn check_component(
    root: &Path,
    path: &Path,
    last: Option<PathKind>,
    sticky: StickyDirectories,
) -> Result<Option<PathBuf>, TrustError> {
    let failed = |source| TrustError::Lstat {
        path: path.to_owned(),
        source,
    };
    let untrusted = |reason| TrustError::Untrusted {
        path: path.to_owned(),
        reason,
    };
    let found = root.join(path.strip_prefix("/").unwrap_or(path));
    let metadata = fs::symlink_metadata(&found).map_err(failed)?;
    if !is_owned_by_root(metadata.uid()) {
        return Err(untrusted("isn't owned by root"));
    }
    if metadata.is_symlink() {
        // The mode of a symbolic link has no meaning.
        return fs::read_link(found).map(Some).map_err(failed);
    }
    let is_allowed_sticky =
        metadata.is_dir() && metadata.mode() & 0o1000 != 0 && sticky == StickyDirectories::Allowed;
    let writable_by_others = if last == Some(PathKind::LogDirectory) {
        0o002
    } else {
        0o022
    };
    if metadata.mode() & writable_by_others != 0 && !is_allowed_sticky {
        return Err(untrusted("can be written by others than root"));
    }
    match last {
        Some(PathKind::File) if !metadata.is_file() => Err(untrusted("isn't a file")),
        Some(PathKind::Directory | PathKind::LogDirectory) if !metadata.is_dir() => {
            Err(untrusted("isn't a directory"))
        }
        _ => Ok(None),
    }
}

/// The owner that files of an id unknown to a user namespace seem to have (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;

/// Returns whether a file with this owner belongs to root. In a user namespace, the files of the node's root have the
/// overflow id.
pub(crate) fn is_owned_by_root(owner: u32) -> bool {
    owner == 0 || (owner == OVERFLOW_UID && is_rootless())
}

/// Returns whether the caller is rootless: another user than root, or root in a user namespace. A rootless caller can
/// neither mount a volume nor read what root has staged.
#[must_use]
pub fn is_rootless() -> bool {
    !rustix::process::geteuid().is_root() || in_user_namespace()
}

/// Returns whether this process is in another user namespace than the initial one, which maps every id to itself
/// (`user_namespaces(7)`).
pub(crate) fn in_user_namespace() -> bool {
    let map = Path::new("/proc/self/uid_map");
    let map = bounded::read_to_string(map, MAX_KERNEL_VALUE).unwrap_or_default();
    !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn check(path: &Path) -> Result<(), String> {
        check_directory(Path::new("/"), path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_directory_is_checked_as_far_as_it_exists() {
        let temporary = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| temporary.path().join(name);
        assert_eq!(check(temporary.path()), Ok(()));
        assert_eq!(check(&at("a/b")), Ok(()));
        symlink(".", at("link")).unwrap();
        assert_eq!(check(&at("link/a")), Ok(()));
        fs::write(at("file"), "").unwrap();
        let error = check(&at("file/a")).unwrap_err();
        assert!(error.contains("file isn't a directory"), "{error}");
        for mode in [0o770, 0o1777] {
            fs::set_permissions(temporary.path(), fs::Permissions::from_mode(mode)).unwrap();
            for path in [temporary.path().to_owned(), at("a/b"), at("link/a")] {
                let error = check(&path).unwrap_err();
                let expected = format!("{} can be written by others", temporary.path().display());
                assert!(error.contains(&expected), "{error}");
            }
        }
    }

    /// In a container, the node's root directory is mounted somewhere else.
    #[test]
    fn links_are_resolved_below_the_given_root_directory() {
        let temporary = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| temporary.path().join(name);
        fs::create_dir_all(at("opt/bin")).unwrap();
        fs::write(at("opt/bin/program"), "").unwrap();
        symlink("/opt/bin", at("bin")).unwrap();
        let found = |path: &str| resolve(temporary.path(), Path::new(path), PathKind::File);
        assert_eq!(
            found("/bin/program").unwrap(),
            Path::new("/opt/bin/program")
        );
        assert!(check_directory(temporary.path(), Path::new("/bin/more")).is_ok());
        fs::set_permissions(at("opt"), fs::Permissions::from_mode(0o777)).unwrap();
        let error = found("/bin/program").unwrap_err().to_string();
        assert!(
            error.starts_with("/opt can be written by others"),
            "{error}"
        );
        let error = check_directory(temporary.path(), Path::new("/bin/more")).unwrap_err();
        assert!(error.to_string().starts_with("/opt can be"), "{error}");
    }
}
