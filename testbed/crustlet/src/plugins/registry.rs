//! Lists the sockets in the registration directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crust_state::trust::{self, PathKind, TrustError};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;

/// The identity of a socket. The time distinguishes a later socket with the same path and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketIdentity {
    device: (u32, u32),
    inode: u64,
    /// The birth time, or the change time if the file system has no birth time.
    created: (i64, u32),
}

impl SocketIdentity {
    /// Returns the type and the identity of the file at a path.
    pub(super) fn read(path: &Path) -> Result<(FileType, Self), Errno> {
        // The metadata of std has no birth time on musl.
        let fields = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, fields)?;
        let has_birth_time =
            StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        let created = if has_birth_time {
            stat.stx_btime
        } else {
            stat.stx_ctime
        };
        let identity = Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            created: (created.tv_sec, created.tv_nsec),
        };
        Ok((FileType::from_raw_mode(stat.stx_mode.into()), identity))
    }
}

/// Sockets with their identities.
pub(super) type Sockets = BTreeMap<PathBuf, SocketIdentity>;

/// The contents of the registration directory and its subdirectories.
#[derive(Debug, Default)]
pub(super) struct RegistryContents {
    /// All directories, including the registration directory.
    pub(super) directories: BTreeSet<PathBuf>,
    pub(super) sockets: Sockets,
    pub(super) skipped: BTreeMap<PathBuf, SkipReason>,
}

/// The reason why an entry is skipped.
#[derive(Debug, thiserror::Error)]
pub(super) enum SkipReason {
    /// A user other than root could register a driver there, which would get secrets.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// The target of a symbolic link may be another user's.
    #[error("symbolic links are not followed")]
    Symlink,
    /// The directory can't be read.
    #[error("readdir: {0}")]
    Read(#[from] io::Error),
}

/// Lists the registration directory and its subdirectories. An entry that disappears during the scan is ignored.
pub(super) fn scan(registry: &Path) -> RegistryContents {
    let mut contents = RegistryContents::default();
    let mut directories = vec![registry.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = entries(&directory);
        contents.directories.insert(directory.clone());
        let entries = match entries {
            Ok(entries) => entries,
            Err(reason) => {
                contents.skipped.insert(directory, reason);
                continue;
            }
        };
        for entry in entries {
            let path = entry.path();
            // Hidden entries are being created or removed. kubelet ignores them, too.
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            let Ok((kind, identity)) = SocketIdentity::read(&path) else {
                continue;
            };
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_socket() {
                contents.sockets.insert(path, identity);
            } else if kind.is_symlink() {
                contents.skipped.insert(path, SkipReason::Symlink);
            }
        }
    }
    contents
}

fn entries(directory: &Path) -> Result<Vec<DirEntry>, SkipReason> {
    trust::resolve(Path::new("/"), directory, PathKind::Directory)?;
    Ok(fs::read_dir(directory)?.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_in_trusted_directories_are_found() {
        let dir = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let path = |name: &str| dir.path().join(name);
        let mkdir = |name: &str, mode| {
            fs::DirBuilder::new().mode(mode).create(path(name)).unwrap();
        };
        mkdir("sub", 0o755);
        mkdir("open", 0o755);
        mkdir(".gone", 0o755);
        let sockets = ["a.sock", "sub/b.sock", "open/c.sock", ".d.sock", ".gone/e"];
        let _listeners = sockets.map(|name| UnixListener::bind(path(name)).unwrap());
        fs::write(path("file"), "").unwrap();
        symlink(path("a.sock"), path("link")).unwrap();
        let open = fs::File::open(path("open")).unwrap();
        rustix::fs::fchmod(&open, rustix::fs::Mode::from(0o1777)).unwrap();
        let contents = scan(dir.path());
        let names: Vec<&PathBuf> = contents.sockets.keys().collect();
        assert_eq!(names, [&path("a.sock"), &path("sub/b.sock")]);
        let skipped: Vec<String> = contents.skipped.values().map(ToString::to_string).collect();
        assert_eq!(skipped.len(), 2, "{skipped:?}");
        assert!(
            skipped[0].contains("symbolic links are not followed"),
            "{skipped:?}"
        );
        assert!(
            skipped[1].contains("can be written by others"),
            "{skipped:?}"
        );
        assert!(
            contents.directories.contains(&path("open")),
            "a skipped directory is watched"
        );
    }

    #[test]
    fn a_replaced_socket_has_another_identity() {
        let dir = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let path = dir.path().join("a.sock");
        let _first = UnixListener::bind(&path).unwrap();
        let first = scan(dir.path()).sockets[&path];
        assert_eq!(scan(dir.path()).sockets[&path], first);
        let _second = UnixListener::bind(dir.path().join("b")).unwrap();
        fs::rename(dir.path().join("b"), &path).unwrap();
        assert_ne!(scan(dir.path()).sockets[&path], first);
    }
}
