//! Whether root alone can change what a path leads to, and whether this process is root on the node.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use rustix::fs::{Access, access};

/// The reason why a path isn't trusted.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// A part of the path can be changed by others than root.
    #[error(
        "{} {reason}; hint: only root may own and write it, and what is above it (chown \
         root:root, chmod go-w)",
        place.display()
    )]
    Writable {
        /// The part.
        place: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// A part of the path can't be looked at.
    #[error("lstat {}: {source}", place.display())]
    Lstat {
        /// The part.
        place: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Links lead in a circle.
    #[error("too many symbolic links")]
    Circle,
    /// It is no program.
    #[error("{} can't be executed", .0.display())]
    NotExecutable(PathBuf),
}

impl Flaw {
    /// Whether nothing is there.
    fn is_none(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound};
        let Self::Lstat { source, .. } = self else {
            return false;
        };
        matches!(source.kind(), NotFound | NotADirectory)
    }
}

/// The kind of file that a path has to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A directory that a group may write, too, as `/var/log` is on Ubuntu (`root:syslog`, 0775).
    Logs,
}

/// The most links that are followed, as in `path_resolution(7)`.
const MOST_LINKS: usize = 40;

/// Whether others may make names of their own in a directory on the way, as in `/tmp`: they can't
/// touch those that are root's (the sticky bit), and each further step has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Allowed,
    Refused,
}

/// Where an absolute path leads to below `root`, every step of it root's: the last, each directory and
/// each link on the way. Then nobody else can change it between this look and its use. Paths are as
/// whoever has that root directory sees them.
pub fn walk(root: &Path, path: &Path, kind: Kind) -> Result<PathBuf, Flaw> {
    follow(root, path, kind, Shared::Refused).map_err(|(_, flaw)| flaw)
}

/// Where a path of root's leads, so that nobody else can put something else of root's there. `None`
/// where a part of it isn't there. A directory on the way may be one like `/tmp`.
pub(crate) fn way(path: &Path, kind: Kind) -> Result<Option<PathBuf>, Flaw> {
    match follow(Path::new("/"), path, kind, Shared::Allowed) {
        Ok(real) => Ok(Some(real)),
        Err((_, flaw)) if flaw.is_none() => Ok(None),
        Err((_, flaw)) => Err(flaw),
    }
}

/// The same for a program, which can be executed.
pub fn program(path: &Path) -> Result<PathBuf, Flaw> {
    let real = walk(Path::new("/"), path, Kind::File)?;
    match access(&real, Access::EXEC_OK) {
        Ok(()) => Ok(real),
        Err(_) => Err(Flaw::NotExecutable(real)),
    }
}

/// The same for a directory of which the last parts may be missing: whoever makes them is root.
pub fn directory(root: &Path, path: &Path) -> Result<(), Flaw> {
    let shared = Shared::Refused;
    match follow(root, path, Kind::Directory, shared) {
        Err((here, flaw)) if flaw.is_none() => {
            step(root, &here, Some(Kind::Directory), shared).map(drop)
        }
        other => other.map(drop).map_err(|(_, flaw)| flaw),
    }
}

/// With a flaw, how far it was followed.
fn follow(
    root: &Path,
    path: &Path,
    kind: Kind,
    shared: Shared,
) -> Result<PathBuf, (PathBuf, Flaw)> {
    let mut here = PathBuf::from("/");
    let mut rest = Vec::new();
    put_first(&mut rest, path);
    let mut links = 0;
    if let Err(flaw) = step(root, &here, None, shared) {
        return Err((here, flaw));
    }
    while let Some(name) = rest.pop() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(name);
        let last = rest.is_empty().then_some(kind);
        let target = match step(root, &next, last, shared) {
            Ok(Some(target)) => target,
            Ok(None) => {
                here = next;
                continue;
            }
            Err(flaw) => return Err((here, flaw)),
        };
        links += 1;
        if links > MOST_LINKS {
            return Err((here, Flaw::Circle));
        }
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        put_first(&mut rest, &target);
    }
    Ok(here)
}

/// The names of `path` before those that are left, the next one last.
fn put_first(rest: &mut Vec<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => rest.push(name.to_owned()),
            Component::ParentDir => rest.push("..".into()),
            _ => {}
        }
    }
}

/// Looks at one part of the path; what it leads to, if it is a link.
fn step(
    root: &Path,
    place: &Path,
    last: Option<Kind>,
    shared: Shared,
) -> Result<Option<PathBuf>, Flaw> {
    let failed = |source| Flaw::Lstat {
        place: place.to_owned(),
        source,
    };
    let reason = |reason| Flaw::Writable {
        place: place.to_owned(),
        reason,
    };
    let found = root.join(place.strip_prefix("/").unwrap_or(place));
    let metadata = fs::symlink_metadata(&found).map_err(failed)?;
    if !is_roots(metadata.uid()) {
        return Err(reason("isn't owned by root"));
    }
    if metadata.is_symlink() {
        // Its mode means nothing.
        return fs::read_link(found).map(Some).map_err(failed);
    }
    let is_shared = metadata.is_dir() && metadata.mode() & 0o1000 != 0 && shared == Shared::Allowed;
    let others = if last == Some(Kind::Logs) {
        0o002
    } else {
        0o022
    };
    if metadata.mode() & others != 0 && !is_shared {
        return Err(reason("can be written by others than root"));
    }
    match last {
        Some(Kind::File) if !metadata.is_file() => Err(reason("isn't a file")),
        Some(Kind::Directory | Kind::Logs) if !metadata.is_dir() => {
            Err(reason("isn't a directory"))
        }
        _ => Ok(None),
    }
}

/// The owner that files of an id unknown to a user namespace seem to have (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;

/// Whether a file of this owner is root's. In a user namespace the files of the node's root have the overflow id.
pub(crate) fn is_roots(owner: u32) -> bool {
    owner == 0 || (owner == OVERFLOW_UID && is_rootless())
}

/// Whether the caller is rootless: another user, or root in a user namespace. It can neither mount a
/// volume nor look at what root has staged.
#[must_use]
pub fn is_rootless() -> bool {
    !rustix::process::geteuid().is_root() || in_user_namespace()
}

/// The first user namespace maps every id to itself (`user_namespaces(7)`).
pub(crate) fn in_user_namespace() -> bool {
    let map = Path::new("/proc/self/uid_map");
    let map = bounded::read_to_string(map, MAX_KERNEL_VALUE).unwrap_or_default();
    !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn verdict(path: &Path) -> Result<(), String> {
        directory(Path::new("/"), path).map_err(|flaw| flaw.to_string())
    }

    #[test]
    fn a_directory_is_roots_as_far_as_it_is_there() {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| lab.path().join(name);
        assert_eq!(verdict(lab.path()), Ok(()));
        assert_eq!(verdict(&at("a/b")), Ok(()));
        symlink(".", at("link")).unwrap();
        assert_eq!(verdict(&at("link/a")), Ok(()));
        fs::write(at("file"), "").unwrap();
        let error = verdict(&at("file/a")).unwrap_err();
        assert!(error.contains("file isn't a directory"), "{error}");
        for mode in [0o770, 0o1777] {
            fs::set_permissions(lab.path(), fs::Permissions::from_mode(mode)).unwrap();
            for path in [lab.path().to_owned(), at("a/b"), at("link/a")] {
                let error = verdict(&path).unwrap_err();
                let expected = format!("{} can be written by others", lab.path().display());
                assert!(error.contains(&expected), "{error}");
            }
        }
    }

    /// A container has the node somewhere else.
    #[test]
    fn links_lead_to_what_is_below_the_root_directory() {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| lab.path().join(name);
        fs::create_dir_all(at("opt/bin")).unwrap();
        fs::write(at("opt/bin/program"), "").unwrap();
        symlink("/opt/bin", at("bin")).unwrap();
        let found = |path: &str| walk(lab.path(), Path::new(path), Kind::File);
        assert_eq!(
            found("/bin/program").unwrap(),
            Path::new("/opt/bin/program")
        );
        assert!(directory(lab.path(), Path::new("/bin/more")).is_ok());
        fs::set_permissions(at("opt"), fs::Permissions::from_mode(0o777)).unwrap();
        let error = found("/bin/program").unwrap_err().to_string();
        assert!(
            error.starts_with("/opt can be written by others"),
            "{error}"
        );
        let error = directory(lab.path(), Path::new("/bin/more")).unwrap_err();
        assert!(error.to_string().starts_with("/opt can be"), "{error}");
    }
}
