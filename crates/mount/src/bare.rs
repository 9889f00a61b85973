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

/// The kind of contents of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Nothing but directories, since container runtimes create a missing bind source; or it
    /// doesn't exist.
    Bare,
    /// Something else too.
    Files,
    /// It is the root of a mount, or an automount's trigger, and wasn't listed.
    Mount,
    /// It couldn't be looked into, or only directories were found before the look became too long.
    Unknown,
}

/// Returns what a CSI volume's directory on the host holds. Below it no link is followed, and nothing is
/// mounted by the look: a path alone doesn't trigger an automount (open(2), `O_PATH`).
#[must_use]
pub fn contents(directory: &Path) -> Contents {
    const OCCUPIED: StatxAttributes = StatxAttributes::MOUNT_ROOT.union(StatxAttributes::AUTOMOUNT);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Ok(place) => place,
        Err(Errno::NOENT) => return Contents::Bare,
        Err(_) => return Contents::Unknown,
    };
    match rustix::fs::statx(&place, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS) {
        Ok(stat) if stat.stx_attributes.intersects(OCCUPIED) => return Contents::Mount,
        Ok(_) => {}
        Err(_) => return Contents::Unknown,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&place, c".", flags, Mode::empty()) {
        Ok(opened) => look_into(opened, DEPTH, &mut ENTRIES.clone()),
        // Something else than a directory.
        Err(Errno::NOTDIR) => Contents::Files,
        Err(_) => Contents::Unknown,
    }
}

/// Whether a CSI volume's directory on the host isn't the root of a mount and holds no files. One
/// that doesn't exist is bare.
#[must_use]
pub fn is_bare_directory(directory: &Path) -> bool {
    contents(directory) == Contents::Bare
}

fn look_into(directory: OwnedFd, depth: usize, left: &mut usize) -> Contents {
    let Ok(mut entries) = Dir::new(directory) else {
        return Contents::Unknown;
    };
    while let Some(entry) = entries.next() {
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
        let opened = entries
            .fd()
            .and_then(|directory| rustix::fs::openat(directory, name, flags, Mode::empty()));
        let Ok(below) = opened else {
            return Contents::Unknown;
        };
        match look_into(below, depth - 1, left) {
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
        let look = |depth, mut entries| {
            let opened = std::fs::File::open(temporary.path()).unwrap();
            look_into(opened.into(), depth, &mut entries)
        };
        assert_eq!(look(3, 3), Contents::Bare);
        assert_eq!(look(2, 3), Contents::Unknown);
        assert_eq!(look(3, 2), Contents::Unknown);
    }

    #[test]
    fn what_is_no_directory_is_somebodys_data() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(contents(file.path()), Contents::Files);
    }

    #[test]
    fn a_mount_is_never_bare() {
        assert!(!is_bare_directory(Path::new("/proc")));
        assert_eq!(contents(Path::new("/proc")), Contents::Mount);
    }
}
