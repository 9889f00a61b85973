//! Directories that only mark where a volume would be.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

/// How deep a tree of empty directories is looked into. Runtimes create a subPath's directories;
/// what is deeper is somebody's data.
const DEPTH: usize = 64;

/// How many entries of such a tree are looked at; more are somebody's data as well.
const ENTRIES: usize = 10_000;

/// What stands in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Nothing but directories, since container runtimes create a missing bind source; or it
    /// doesn't exist.
    Bare,
    /// Something else too.
    Files,
    /// It is the root of a mount, and wasn't listed.
    Mount,
    /// It couldn't be looked into, or only directories were found before the look became too long.
    Unknown,
}

/// What a CSI volume's directory on the host holds. Below it no link is followed.
#[must_use]
pub fn contents(directory: &Path) -> Contents {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Contents::Bare,
        Err(_) => return Contents::Unknown,
    };
    match rustix::fs::statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS) {
        Ok(stat) if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => Contents::Mount,
        Ok(_) => look_into(&opened, DEPTH, &mut ENTRIES.clone()),
        Err(_) => Contents::Unknown,
    }
}

/// Whether a CSI volume's directory on the host isn't the root of a mount and holds no files. One
/// that doesn't exist is bare.
#[must_use]
pub fn is_bare_directory(directory: &Path) -> bool {
    contents(directory) == Contents::Bare
}

fn look_into(directory: &OwnedFd, depth: usize, left: &mut usize) -> Contents {
    let Ok(entries) = Dir::read_from(directory) else {
        return Contents::Unknown;
    };
    for entry in entries {
        let Ok(entry) = entry else {
            return Contents::Unknown;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            return Contents::Files;
        }
        if depth == 0 || *left == 0 {
            return Contents::Unknown;
        }
        *left -= 1;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(below) = rustix::fs::openat(directory, name, flags, Mode::empty()) else {
            return Contents::Unknown;
        };
        match look_into(&below, depth - 1, left) {
            Contents::Bare => {}
            other => return other,
        }
    }
    Contents::Bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_directories_are_bare_and_a_file_anywhere_below_is_not() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        assert!(is_bare_directory(path));
        assert!(is_bare_directory(&path.join("missing")));
        std::fs::create_dir_all(path.join("a/b/c")).unwrap();
        assert!(is_bare_directory(path));
        std::os::unix::fs::symlink("nowhere", path.join("a/b/link")).unwrap();
        assert!(!is_bare_directory(path), "a link is somebody's data");
        std::fs::remove_file(path.join("a/b/link")).unwrap();
        std::fs::write(path.join("a/b/file"), b"").unwrap();
        assert_eq!(contents(path), Contents::Files);
        assert!(!is_bare_directory(path));
        assert!(is_bare_directory(&path.join("a/b/c")));
    }

    #[test]
    fn a_tree_that_is_too_deep_or_too_large_is_not_judged() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temporary.path().join("a/b/c")).unwrap();
        let opened = OwnedFd::from(std::fs::File::open(temporary.path()).unwrap());
        let look = |depth, mut entries| look_into(&opened, depth, &mut entries);
        assert_eq!(look(3, 3), Contents::Bare);
        assert_eq!(look(2, 3), Contents::Unknown);
        assert_eq!(look(3, 2), Contents::Unknown);
    }

    #[test]
    fn a_mount_is_never_bare() {
        assert!(!is_bare_directory(Path::new("/proc")));
        assert_eq!(contents(Path::new("/proc")), Contents::Mount);
    }
}
