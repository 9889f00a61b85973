//! The identity of an open directory: whether its path still leads to it, and whether its file system is in memory.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, Stat, StatFs, fstatfs, lstat, statfs};

use super::{Directory, check_owner};

/// The attributes that a directory had when it was opened.
#[derive(Debug)]
pub(super) struct DirectoryIdentity {
    device: u64,
    inode: u64,
    mode: u32,
    /// Whether the file system is in memory. Cached, because it never changes.
    in_memory: OnceLock<bool>,
}

impl DirectoryIdentity {
    pub(super) fn new(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            in_memory: OnceLock::new(),
        }
    }

    pub(super) fn has_mode(&self, mode: Mode) -> bool {
        Mode::from_raw_mode(self.mode) == mode
    }

    fn matches(&self, stat: &Stat) -> bool {
        (stat.st_dev, stat.st_ino) == (self.device, self.inode)
            && FileType::from_raw_mode(stat.st_mode).is_dir()
    }
}

impl Directory {
    /// Returns whether the path still leads to this directory, and only root can write it. The parents aren't checked
    /// again: a change of them could only make the path lead to another directory.
    pub(crate) fn is_current(&self) -> bool {
        lstat(&self.path).is_ok_and(|now| {
            self.identity.matches(&now) && check_owner(&self.path, now.st_uid, now.st_mode).is_ok()
        })
    }

    /// Returns whether the directory is on a file system in memory. Writes then wait for no disk.
    pub(crate) fn is_in_memory(&self) -> bool {
        *self
            .identity
            .in_memory
            .get_or_init(|| is_open_file_in_memory(&self.fd))
    }
}

/// Values of `f_type` in statfs(2).
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Returns whether a path is on a file system in memory, which doesn't survive a reboot; `None` if that is unknown.
pub(crate) fn is_in_memory(path: &Path) -> Option<bool> {
    Some(is_memory_type(&statfs(path).ok()?))
}

/// Returns whether an open file is on a file system in memory; `false` if that is unknown.
fn is_open_file_in_memory(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|stat| is_memory_type(&stat))
}

fn is_memory_type(stat: &StatFs) -> bool {
    matches!(stat.f_type, TMPFS | RAMFS)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_replaced_or_untrusted_directory_is_not_current() {
        let temporary = tempfile::tempdir().unwrap();
        let (path, away) = (
            temporary.path().join("crust"),
            temporary.path().join("away"),
        );
        let directory = Directory::create(&path).unwrap();
        assert!(directory.is_current());
        fs::rename(&path, &away).unwrap();
        assert!(!directory.is_current(), "nothing is at the path");
        Directory::create(&path).unwrap();
        assert!(!directory.is_current(), "another directory is at the path");
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(&away, &path).unwrap();
        assert!(!directory.is_current(), "a link is at the path");
        fs::rename(&away, &path).unwrap_err();
        fs::remove_file(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        assert!(directory.is_current());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(!directory.is_current(), "a group may write it");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        chown(&path, Some(1000), None).unwrap();
        assert!(!directory.is_current(), "root isn't the owner");
    }

    #[test]
    fn tmpfs_is_in_memory_and_proc_is_not() {
        let in_memory = |path: &str| is_in_memory(Path::new(path));
        assert_eq!(in_memory("/dev/shm"), Some(true));
        assert_eq!(in_memory("/proc"), Some(false));
        assert_eq!(in_memory("/proc/none"), None);
    }
}
