//! How full a mounted volume is (CSI `VolumeUsage`).

use std::os::fd::AsFd;

use rustix::fs::{StatVfs, fstatvfs};

use crate::errno::Name;

/// Bytes and inodes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// In bytes.
    pub bytes: ResourceUsage,
    /// In inodes; all zero where the file system has no fixed number of them (btrfs).
    pub inodes: ResourceUsage,
}

/// One quantity. `used + available` can be less than `total`: ext4 keeps blocks back for root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceUsage {
    /// All there is, in use or not.
    pub total: u64,
    /// The number in use.
    pub used: u64,
    /// The number that a user without privileges can still take.
    pub available: u64,
}

/// The error of reading the usage.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The file system didn't answer; EIO is one that was shut down or whose device is gone.
    #[error("fstatfs: {}: the volume's file system doesn't tell how full it is", Name(*.0))]
    Statfs(rustix::io::Errno),
}

/// Asks the file system that `fd` is on (fstatfs(2); `O_PATH` will do). The caller closes `fd` soon:
/// one that is forgotten keeps the device busy.
pub fn read_usage(fd: impl AsFd) -> Result<Usage, UsageError> {
    let stat = rustix::io::retry_on_intr(|| fstatvfs(fd.as_fd())).map_err(UsageError::Statfs)?;
    Ok(convert(&Counts::from(&stat)))
}

/// The counts of fstatfs(2), blocks in units of `fragment` bytes.
#[derive(Debug, Clone, Copy)]
struct Counts {
    fragment: u64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
}

impl From<&StatVfs> for Counts {
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

/// `available` is `f_bavail`, not Kata's `f_bfree`, which counts what is reserved for root.
fn convert(counts: &Counts) -> Usage {
    let bytes = |blocks: u64| blocks.saturating_mul(counts.fragment);
    Usage {
        bytes: ResourceUsage {
            total: bytes(counts.blocks),
            used: bytes(counts.blocks.saturating_sub(counts.blocks_free)),
            available: bytes(counts.blocks_available),
        },
        inodes: ResourceUsage {
            total: counts.files,
            used: counts.files.saturating_sub(counts.files_free),
            available: counts.files_free,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Counts = Counts {
        fragment: 4096,
        blocks: 1000,
        blocks_free: 400,
        blocks_available: 350,
        files: 64,
        files_free: 53,
    };

    #[test]
    fn blocks_reserved_for_root_are_neither_used_nor_available() {
        let usage = convert(&COUNTS);
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
    fn inodes_are_counted_apart_from_bytes() {
        let usage = convert(&COUNTS);
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
    fn absurd_numbers_of_a_broken_file_system_saturate() {
        let usage = convert(&Counts {
            blocks: u64::MAX,
            blocks_free: 0,
            blocks_available: u64::MAX,
            files: 1,
            files_free: 2,
            ..COUNTS
        });
        assert_eq!(usage.bytes.total, u64::MAX);
        assert_eq!(usage.bytes.used, u64::MAX);
        assert_eq!(usage.inodes.used, 0);
    }

    #[test]
    fn a_real_file_system_answers_through_a_path_descriptor() {
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
