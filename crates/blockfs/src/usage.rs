//! Usage of a mounted volume (CSI `VolumeUsage`).

use std::os::fd::AsFd;

use rustix::fs::{StatVfs, fstatvfs};

use crate::errno::Name;

/// Usage of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Usage of space, in bytes.
    pub bytes: ResourceUsage,
    /// Usage of inodes, in inodes. All values are 0 if the file system has no fixed number of inodes (btrfs).
    pub inodes: ResourceUsage,
}

/// Usage of one resource. `used + available` can be less than `total`, because ext4 reserves blocks for root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceUsage {
    /// The capacity of the file system.
    pub total: u64,
    /// The amount in use.
    pub used: u64,
    /// The amount that a user without privileges can still use.
    pub available: u64,
}

/// The error of reading the usage.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// fstatfs(2) failed. EIO means that the file system was shut down, or that its device is gone.
    #[error(
        "fstatfs: {}: the usage of the volume's file system can't be read; hint: see the kernel's log (dmesg) for \
         errors of its device", Name(*.0)
    )]
    Statfs(rustix::io::Errno),
}

/// Returns the usage of the file system that `fd` is on (fstatfs(2)). `fd` may be opened with `O_PATH`. The caller
/// should close `fd` soon, because an open descriptor keeps the device busy.
pub fn read_usage(fd: impl AsFd) -> Result<Usage, UsageError> {
    let stat = rustix::io::retry_on_intr(|| fstatvfs(fd.as_fd())).map_err(UsageError::Statfs)?;
    Ok(convert(&StatfsValues::from(&stat)))
}

/// The values of fstatfs(2) that are used. Blocks are in units of `fragment` bytes.
#[derive(Debug, Clone, Copy)]
struct StatfsValues {
    fragment: u64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
}

impl From<&StatVfs> for StatfsValues {
    fn from(stat: &StatVfs) -> Self {
        Self {
            fragment: stat.f_frsize,
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree,
            blocks_available: stat.f_bavail,
            files: stat.f_files,
            files_free: stat.f_ffree,
        }
    }
}

/// Converts the values of fstatfs(2). The available space is `f_bavail`. Kata uses `f_bfree`, which includes the blocks
/// that are reserved for root.
fn convert(statfs: &StatfsValues) -> Usage {
    let bytes = |blocks: u64| blocks.saturating_mul(statfs.fragment);
    Usage {
        bytes: ResourceUsage {
            total: bytes(statfs.blocks),
            used: bytes(statfs.blocks.saturating_sub(statfs.blocks_free)),
            available: bytes(statfs.blocks_available),
        },
        inodes: ResourceUsage {
            total: statfs.files,
            used: statfs.files.saturating_sub(statfs.files_free),
            available: statfs.files_free,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATFS: StatfsValues = StatfsValues {
        fragment: 4096,
        blocks: 1000,
        blocks_free: 400,
        blocks_available: 350,
        files: 64,
        files_free: 53,
    };

    #[test]
    fn blocks_reserved_for_root_are_neither_used_nor_available() {
        let usage = convert(&STATFS);
        assert_eq!(
            usage.bytes,
            ResourceUsage {
                total: 4_096_000,
                used: 2_457_600,
                available: 1_433_600
            }
        );
        assert!(usage.bytes.used + usage.bytes.available < usage.bytes.total);
    }

    #[test]
    fn inodes_are_counted_separately() {
        let usage = convert(&STATFS);
        assert_eq!(
            usage.inodes,
            ResourceUsage {
                total: 64,
                used: 11,
                available: 53
            }
        );
    }

    #[test]
    fn impossible_values_of_a_broken_file_system_saturate() {
        let usage = convert(&StatfsValues {
            blocks: u64::MAX,
            blocks_free: 0,
            blocks_available: u64::MAX,
            files: 1,
            files_free: 2,
            ..STATFS
        });
        assert_eq!(usage.bytes.total, u64::MAX);
        assert_eq!(usage.bytes.used, u64::MAX);
        assert_eq!(usage.inodes.used, 0);
    }

    #[test]
    fn the_usage_can_be_read_through_an_o_path_descriptor() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fd = rustix::fs::open(
            directory.path(),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .expect("the directory opens");
        let usage = read_usage(&fd).expect("the file system answers");
        assert!(usage.bytes.total > 0);
        assert!(usage.bytes.used <= usage.bytes.total);
        assert!(usage.bytes.available <= usage.bytes.total);
    }
}
