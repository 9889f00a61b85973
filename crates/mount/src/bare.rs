//! Directories that only mark where a volume would be.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

/// How deep a tree of empty directories is looked into. Runtimes create a subPath's directories;
/// what is deeper is somebody's data.
const DEPTH: usize = 64;

/// Whether a CSI volume's directory on the host isn't the root of a mount and holds no files:
/// directories may stand in it, since container runtimes create a missing bind source. One that
/// doesn't exist is bare.
///
/// It is listed only when it isn't a mount.
#[must_use]
pub fn is_bare_directory(directory: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(error) => return error == Errno::NOENT,
    };
    let stat = rustix::fs::statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    let plain = stat.is_ok_and(|stat| !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    plain && holds_no_files(&opened, DEPTH)
}

fn holds_no_files(directory: &OwnedFd, depth: usize) -> bool {
    let Ok(entries) = Dir::read_from(directory) else {
        return false;
    };
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory || depth == 0 {
            return false;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(below) = rustix::fs::openat(directory, name, flags, Mode::empty()) else {
            return false;
        };
        if !holds_no_files(&below, depth - 1) {
            return false;
        }
    }
    true
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
        assert!(!is_bare_directory(path));
        assert!(is_bare_directory(&path.join("a/b/c")));
    }

    #[test]
    fn a_mount_is_never_bare() {
        assert!(!is_bare_directory(Path::new("/proc")));
    }
}
