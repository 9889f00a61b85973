//! What is kept in memory, and ends with the boot.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{StatFs, fstatfs, statfs};

/// Of `statfs(2)`.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Whether a file or directory is; `None` where that can't be told.
pub(crate) fn is_in_memory(path: &Path) -> Option<bool> {
    Some(is_memory(&statfs(path).ok()?))
}

/// The same of an open one; not, where that can't be told.
pub(crate) fn holds(open: impl AsFd) -> bool {
    fstatfs(open).is_ok_and(|found| is_memory(&found))
}

fn is_memory(found: &StatFs) -> bool {
    matches!(found.f_type, TMPFS | RAMFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_and_no_other_file_system_of_the_kernels() {
        let told = |path: &str| is_in_memory(Path::new(path));
        assert_eq!(told("/dev/shm"), Some(true));
        assert_eq!(told("/proc"), Some(false));
        assert_eq!(told("/proc/none"), None);
    }
}
