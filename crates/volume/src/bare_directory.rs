//! Directories that only mark where a volume would be mounted: no mount point, and no files.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crust_blockfs::identity::LookupError;

/// The depth to which a tree of empty directories is read. Runtimes create a subPath's directories;
/// a deeper tree is somebody's data.
const DEPTH: usize = 64;

/// The number of entries of such a tree that are read; a larger tree is somebody's data as well.
const ENTRIES: usize = 10_000;

/// The kind of contents of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryContents {
    /// Nothing but directories, since container runtimes create a missing bind source; or it
    /// doesn't exist.
    Bare,
    /// Something else than directories, at any depth.
    Files,
    /// It is the root of a mount, or an automount's trigger, and wasn't listed.
    Mount,
    /// It couldn't be looked into, or only directories were found before the look became too long.
    Unknown,
}

/// Returns what a CSI volume's directory on the host holds. Below it no link is followed, and nothing is
/// mounted by the look: a path alone doesn't trigger an automount (open(2), `O_PATH`).
#[must_use]
pub fn contents(directory: &Path) -> DirectoryContents {
    look_up(directory).unwrap_or(DirectoryContents::Unknown)
}

fn look_up(directory: &Path) -> Result<DirectoryContents, LookupError> {
    const OCCUPIED: StatxAttributes = StatxAttributes::MOUNT_ROOT.union(StatxAttributes::AUTOMOUNT);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let failed = |call| move |errno| LookupError::new(call, directory, errno);
    let place = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(DirectoryContents::Bare),
        opened => opened.map_err(failed("openat"))?,
    };
    // Nothing is asked for that a file server would have to be asked for.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&place, "", flags, StatxFlags::empty());
    if stat
        .map_err(failed("statx"))?
        .stx_attributes
        .intersects(OCCUPIED)
    {
        return Ok(DirectoryContents::Mount);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&place, c".", flags, Mode::empty()) {
        // Something else than a directory.
        Err(Errno::NOTDIR) => Ok(DirectoryContents::Files),
        opened => look_into(
            opened.map_err(failed("openat"))?,
            DEPTH,
            &mut ENTRIES.clone(),
        )
        .map_err(failed("getdents64")),
    }
}

/// Whether a CSI volume's directory on the host isn't the root of a mount and holds no files. One
/// that doesn't exist is bare. A tree of directories that is too large to look through counts as somebody's data.
pub fn is_bare_directory(directory: &Path) -> Result<bool, LookupError> {
    Ok(look_up(directory)? == DirectoryContents::Bare)
}

fn look_into(
    directory: OwnedFd,
    depth: usize,
    left: &mut usize,
) -> Result<DirectoryContents, Errno> {
    let mut entries = Dir::new(directory)?;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            return Ok(DirectoryContents::Files);
        }
        if depth == 0 || *left == 0 {
            return Ok(DirectoryContents::Unknown);
        }
        *left -= 1;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = entries
            .fd()
            .and_then(|directory| rustix::fs::openat(directory, name, flags, Mode::empty()));
        match look_into(opened?, depth - 1, left)? {
            DirectoryContents::Bare => {}
            other => return Ok(other),
        }
    }
    Ok(DirectoryContents::Bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_directories_are_bare_and_a_file_anywhere_below_is_not() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        assert!(is_bare_directory(path).unwrap());
        assert!(is_bare_directory(&path.join("missing")).unwrap());
        std::fs::create_dir_all(path.join("a/b/c")).unwrap();
        assert!(is_bare_directory(path).unwrap());
        std::os::unix::fs::symlink("nowhere", path.join("a/b/link")).unwrap();
        assert!(
            !is_bare_directory(path).unwrap(),
            "a link is somebody's data"
        );
        std::fs::remove_file(path.join("a/b/link")).unwrap();
        std::fs::write(path.join("a/b/file"), b"").unwrap();
        assert_eq!(contents(path), DirectoryContents::Files);
        assert!(!is_bare_directory(path).unwrap());
        assert!(is_bare_directory(&path.join("a/b/c")).unwrap());
    }

    #[test]
    fn a_tree_that_is_too_deep_or_too_large_is_not_judged() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temporary.path().join("a/b/c")).unwrap();
        let look = |depth, mut entries| {
            let opened = std::fs::File::open(temporary.path()).unwrap();
            look_into(opened.into(), depth, &mut entries).unwrap()
        };
        assert_eq!(look(3, 3), DirectoryContents::Bare);
        assert_eq!(look(2, 3), DirectoryContents::Unknown);
        assert_eq!(look(3, 2), DirectoryContents::Unknown);
    }

    #[test]
    fn what_is_no_directory_is_somebodys_data() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(contents(file.path()), DirectoryContents::Files);
    }

    #[test]
    fn a_mount_is_never_bare() {
        assert!(!is_bare_directory(Path::new("/proc")).unwrap());
        assert_eq!(contents(Path::new("/proc")), DirectoryContents::Mount);
    }
}
