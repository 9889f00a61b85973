//! The sockets in the directory where plugins register.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crust_state::trust::{self, Flaw, Kind};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;

/// The identity of a socket. A later one by the same name may even have the same inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: (u32, u32),
    inode: u64,
    /// Its birth; where the file system doesn't know it, its last change.
    since: (i64, u32),
}

impl Identity {
    /// Returns the type and the identity of the file at a path.
    pub(super) fn of(path: &Path) -> Result<(FileType, Self), Errno> {
        // Not std's metadata: it knows no birth on musl.
        let fields = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, fields)?;
        let is_born = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        let since = if is_born {
            stat.stx_btime
        } else {
            stat.stx_ctime
        };
        let identity = Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            since: (since.tv_sec, since.tv_nsec),
        };
        Ok((FileType::from_raw_mode(stat.stx_mode.into()), identity))
    }
}

/// Sockets, each with which it is.
pub(super) type Sockets = BTreeMap<PathBuf, Identity>;

/// The contents of the directory, and of those below it.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// All of them, the first one too.
    pub(super) directories: BTreeSet<PathBuf>,
    pub(super) sockets: Sockets,
    /// The entries that are skipped, with the reasons.
    pub(super) left: BTreeMap<PathBuf, Left>,
}

/// Something isn't looked at.
#[derive(Debug, thiserror::Error)]
pub(super) enum Left {
    /// Others than root could put their own driver there, and get root's secrets.
    #[error(transparent)]
    Flaw(#[from] Flaw),
    /// It is a symbolic link, whose target may be another user's.
    #[error("it is a symbolic link, which isn't followed")]
    Link,
    /// The directory can't be read.
    #[error("readdir: {0}")]
    Read(#[from] io::Error),
}

/// Looks. What isn't there is no driver, and nothing to tell.
pub(super) fn look(registry: &Path) -> Found {
    let mut found = Found::default();
    let mut directories = vec![registry.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = entries(&directory);
        found.directories.insert(directory.clone());
        let entries = match entries {
            Ok(entries) => entries,
            Err(why) => {
                found.left.insert(directory, why);
                continue;
            }
        };
        for entry in entries {
            let path = entry.path();
            // kubelet's rule, for what is being made or removed.
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            let Ok((kind, identity)) = Identity::of(&path) else {
                continue;
            };
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_socket() {
                found.sockets.insert(path, identity);
            } else if kind.is_symlink() {
                found.left.insert(path, Left::Link);
            }
        }
    }
    found
}

fn entries(directory: &Path) -> Result<Vec<DirEntry>, Left> {
    trust::walk(Path::new("/"), directory, Kind::Directory)?;
    Ok(fs::read_dir(directory)?.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_wherever_only_root_can_put_one() {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| lab.path().join(name);
        let made = |name: &str, mode| {
            fs::DirBuilder::new().mode(mode).create(at(name)).unwrap();
        };
        made("sub", 0o755);
        made("open", 0o755);
        made(".gone", 0o755);
        let sockets = ["a.sock", "sub/b.sock", "open/c.sock", ".d.sock", ".gone/e"];
        let _listeners = sockets.map(|name| UnixListener::bind(at(name)).unwrap());
        fs::write(at("file"), "").unwrap();
        symlink(at("a.sock"), at("link")).unwrap();
        let open = fs::File::open(at("open")).unwrap();
        rustix::fs::fchmod(&open, rustix::fs::Mode::from(0o1777)).unwrap();
        let found = look(lab.path());
        let names: Vec<&PathBuf> = found.sockets.keys().collect();
        assert_eq!(names, [&at("a.sock"), &at("sub/b.sock")]);
        let left: Vec<String> = found.left.values().map(ToString::to_string).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].contains("it is a symbolic link"), "{left:?}");
        assert!(left[1].contains("can be written by others"), "{left:?}");
        assert!(found.directories.contains(&at("open")), "and is watched");
    }

    #[test]
    fn a_socket_in_anothers_place_is_another_one() {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let path = lab.path().join("a.sock");
        let _first = UnixListener::bind(&path).unwrap();
        let first = look(lab.path()).sockets[&path];
        assert_eq!(look(lab.path()).sockets[&path], first);
        let _second = UnixListener::bind(lab.path().join("b")).unwrap();
        fs::rename(lab.path().join("b"), &path).unwrap();
        assert_ne!(look(lab.path()).sockets[&path], first);
    }
}
