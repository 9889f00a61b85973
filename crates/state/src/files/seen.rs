//! Which directory an open one is, as it was seen when it was opened.

use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, Stat, lstat};

use super::{Directory, trust};
use crate::memory;

/// What is kept of that.
#[derive(Debug)]
pub(super) struct Seen {
    device: u64,
    inode: u64,
    mode: u32,
    /// A directory's file system stays the same.
    in_memory: OnceLock<bool>,
}

impl Seen {
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
    /// Whether it is still what its path leads to, and still root's alone. The way to it isn't looked at again:
    /// whoever could change that could make it lead elsewhere, and no more.
    pub(crate) fn is_still_there(&self) -> bool {
        lstat(&self.path).is_ok_and(|now| {
            self.seen.is(&now) && trust(&self.path, now.st_uid, now.st_mode).is_ok()
        })
    }

    /// Whether what is written here waits for no disk.
    pub(crate) fn is_in_memory(&self) -> bool {
        *self.seen.in_memory.get_or_init(|| memory::holds(&self.fd))
    }
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
        assert!(directory.is_still_there());
        fs::rename(&path, &away).unwrap();
        assert!(!directory.is_still_there(), "nothing has its name");
        Directory::create(&path).unwrap();
        assert!(!directory.is_still_there(), "another has");
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(&away, &path).unwrap();
        assert!(!directory.is_still_there(), "a link has");
        fs::rename(&away, &path).unwrap_err();
        fs::remove_file(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        assert!(directory.is_still_there());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(!directory.is_still_there(), "a group may write it");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        chown(&path, Some(1000), None).unwrap();
        assert!(!directory.is_still_there(), "it is another's");
    }
}
