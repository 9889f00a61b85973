//! The identity of an open directory: whether its path still leads to it, and whether it is in memory.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, Stat, StatFs, fstatfs, lstat, statfs};

use super::{Directory, trust};

/// The attributes of a directory when it was opened.
#[derive(Debug)]
pub(super) struct DirectoryIdentity {
    device: u64,
    inode: u64,
    mode: u32,
    /// Whether its file system is in memory, which doesn't change.
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

    fn is(&self, stat: &Stat) -> bool {
        (stat.st_dev, stat.st_ino) == (self.device, self.inode)
            && FileType::from_raw_mode(stat.st_mode).is_dir()
    }
}

impl Directory {
    /// Whether the path still leads to this directory, and only root can write it. The parents aren't checked again:
    /// whoever could change them could only make the path lead elsewhere.
    pub(crate) fn is_current(&self) -> bool {
        lstat(&self.path).is_ok_and(|now| {
            self.identity.is(&now) && trust(&self.path, now.st_uid, now.st_mode).is_ok()
        })
    }

    /// Whether the directory is on a file system in memory, so that no write waits for a disk.
    pub(crate) fn is_in_memory(&self) -> bool {
        *self.identity.in_memory.get_or_init(|| holds(&self.fd))
    }
}

/// `f_type` of statfs(2).
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Whether a path is on a file system in memory, which ends with the boot; `None` if that is unknown.
pub(crate) fn is_in_memory(path: &Path) -> Option<bool> {
    Some(is_memory(&statfs(path).ok()?))
}

/// Whether an open file is on a file system in memory; `false` if that is unknown.
fn holds(open: impl AsFd) -> bool {
    fstatfs(open).is_ok_and(|found| is_memory(&found))
}

fn is_memory(found: &StatFs) -> bool {
    matches!(found.f_type, TMPFS | RAMFS)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn what_took_its_place_or_is_not_roots_is_another() {
        let lab = tempfile::tempdir().unwrap();
        let (path, away) = (lab.path().join("crust"), lab.path().join("away"));
        let directory = Directory::create(&path).unwrap();
        assert!(directory.is_current());
        fs::rename(&path, &away).unwrap();
        assert!(!directory.is_current(), "nothing has its name");
        Directory::create(&path).unwrap();
        assert!(!directory.is_current(), "another has");
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(&away, &path).unwrap();
        assert!(!directory.is_current(), "a link has");
        fs::rename(&away, &path).unwrap_err();
        fs::remove_file(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        assert!(directory.is_current());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(!directory.is_current(), "a group may write it");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        chown(&path, Some(1000), None).unwrap();
        assert!(!directory.is_current(), "it is another's");
    }

    #[test]
    fn shared_memory_is_and_no_other_file_system_of_the_kernels() {
        let told = |path: &str| is_in_memory(Path::new(path));
        assert_eq!(told("/dev/shm"), Some(true));
        assert_eq!(told("/proc"), Some(false));
        assert_eq!(told("/proc/none"), None);
    }
}
