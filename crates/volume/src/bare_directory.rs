//! Checks whether a directory only marks where a volume would be mounted: it is no mount point and holds no files.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crust_blockfs::identity::LookupError;

/// The depth to which a tree of empty directories is read. Container runtimes create the directories of a subPath; a
/// deeper tree counts as data.
const MAX_DEPTH: usize = 64;

/// The number of directories that are read in a tree; a larger tree counts as data.
const MAX_ENTRIES: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryContents {
    /// The directory contains only directories, such as those that container runtimes create for a missing bind
    /// source. A directory that doesn't exist is bare too.
    Bare,
    /// The directory contains a file other than a directory, at any depth.
    Files,
    /// The directory is the root of a mount or the trigger of an automount. It wasn't listed.
    Mount,
    /// The directory can't be read, or is too deep or large to be read whole and holds only directories so far.
    Unknown,
}

/// Returns the contents of a CSI volume's directory on the host.
///
/// Links below the directory aren't followed. An automount isn't triggered, because a path that is opened with
/// `O_PATH` doesn't trigger one (open(2)).
#[must_use]
pub fn contents(directory: &Path) -> DirectoryContents {
    read_contents(directory).unwrap_or(DirectoryContents::Unknown)
}

fn read_contents(directory: &Path) -> Result<DirectoryContents, LookupError> {
    const OCCUPIED: StatxAttributes = StatxAttributes::MOUNT_ROOT.union(StatxAttributes::AUTOMOUNT);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let failed = |call| move |errno| LookupError::new(call, directory, errno);
    let opened = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(DirectoryContents::Bare),
        opened => opened.map_err(failed("openat"))?,
    };
    // Doesn't ask a file server: only the attributes that the kernel knows are requested.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&opened, "", flags, StatxFlags::empty());
    if stat
        .map_err(failed("statx"))?
        .stx_attributes
        .intersects(OCCUPIED)
    {
        return Ok(DirectoryContents::Mount);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&opened, c".", flags, Mode::empty()) {
        Err(Errno::NOTDIR) => Ok(DirectoryContents::Files),
        directory => read_tree(
            directory.map_err(failed("openat"))?,
            MAX_DEPTH,
            &mut MAX_ENTRIES.clone(),
        )
        .map_err(failed("getdents64")),
    }
}

/// Returns true if a CSI volume's directory on the host is bare: it isn't the root of a mount and holds no files, or it
/// doesn't exist. A tree of directories that is too large to be read isn't bare.
pub fn is_bare_directory(directory: &Path) -> Result<bool, LookupError> {
    Ok(read_contents(directory)? == DirectoryContents::Bare)
}

fn read_tree(
    directory: OwnedFd,
    depth_left: usize,
    entries_left: &mut usize,
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
        if depth_left == 0 || *entries_left == 0 {
            return Ok(DirectoryContents::Unknown);
        }
        *entries_left -= 1;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = entries
            .fd()
            .and_then(|directory| rustix::fs::openat(directory, name, flags, Mode::empty()));
        match read_tree(opened?, depth_left - 1, entries_left)? {
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
        assert!(!is_bare_directory(path).unwrap(), "a link counts as data");
        std::fs::remove_file(path.join("a/b/link")).unwrap();
        std::fs::write(path.join("a/b/file"), b"").unwrap();
        assert_eq!(contents(path), DirectoryContents::Files);
        assert!(!is_bare_directory(path).unwrap());
        assert!(is_bare_directory(&path.join("a/b/c")).unwrap());
    }

    #[test]
    fn contents_of_a_too_deep_or_too_large_tree_are_unknown() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temporary.path().join("a/b/c")).unwrap();
        let read = |depth, mut entries| {
            let opened = std::fs::File::open(temporary.path()).unwrap();
            read_tree(opened.into(), depth, &mut entries).unwrap()
        };
        assert_eq!(read(3, 3), DirectoryContents::Bare);
        assert_eq!(read(2, 3), DirectoryContents::Unknown);
        assert_eq!(read(3, 2), DirectoryContents::Unknown);
    }

    #[test]
    fn a_file_in_place_of_the_directory_counts_as_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(contents(file.path()), DirectoryContents::Files);
    }

    #[test]
    fn a_mount_is_never_bare() {
        assert!(!is_bare_directory(Path::new("/proc")).unwrap());
        assert_eq!(contents(Path::new("/proc")), DirectoryContents::Mount);
    }
}
