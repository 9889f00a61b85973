//! Detects that a walk lists the same directories over and over.
//!
//! Normally a directory has one name. In a hostile or corrupt file system each directory may have two, and then
//! thirty levels make a thousand million paths.
//!
//! The file system's number of inodes isn't an upper bound for a walk. btrfs has no such number (statfs(2) returns 0),
//! under a project quota ext4 and xfs return the project's number instead, and a hostile superblock can claim any. So
//! the number of distinct entries is estimated (`HyperLogLog`: Flajolet et al., 2007) and compared with the number of
//! entries listed. That takes 1 KiB for a tree of any size.
//!
//! An entry is a name in a directory. A file counts once for each hard link, and a directory counts as many times as
//! it has entries, which is the work that it makes. The hash has a new random key for each walk, so that names and
//! inode numbers can't be chosen to mislead the estimate.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::entry::InodeId;

/// Number of registers. With 1024 the standard error of the estimate is 3 %.
const REGISTERS: usize = 1024;
const INDEX_BITS: u32 = REGISTERS.ilog2();
/// Number of listed entries before the first check.
const MIN_LISTED: u64 = 8192;
/// Number of listed entries between two checks.
const CHECK_INTERVAL: u64 = 1024;
/// Maximum number of times that an entry may be listed on average. If a directory is moved while the tree is in use, it
/// is listed again.
const MAX_REPEATS: u64 = 8;

/// A counter of the entries that a walk has listed, which estimates how many of them are distinct.
#[derive(Debug)]
pub(super) struct DistinctEntries {
    listed: AtomicU64,
    registers: Box<[AtomicU8]>,
    hasher: RandomState,
}

/// The error for a walk that lists the same entries over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepeatedListing {
    /// Number of entries listed.
    pub(super) listed: u64,
    /// Estimated number of distinct entries among the listed ones.
    pub(super) distinct: u64,
}

impl Default for DistinctEntries {
    fn default() -> Self {
        Self {
            listed: AtomicU64::new(0),
            registers: (0..REGISTERS).map(|_| AtomicU8::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl DistinctEntries {
    /// Counts entries that were listed in a directory. Fails if entries are listed too many times on average.
    pub(super) fn count_listed<'n>(
        &self,
        directory: InodeId,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), RepeatedListing> {
        let mut count = 0;
        for name in names {
            self.register(self.hasher.hash_one((directory, name)));
            count += 1;
        }
        let before = self.listed.fetch_add(count, Ordering::Relaxed);
        let listed = before + count;
        if listed < MIN_LISTED || before / CHECK_INTERVAL == listed / CHECK_INTERVAL {
            return Ok(());
        }
        let distinct = self.estimate_distinct();
        if listed > distinct.saturating_mul(MAX_REPEATS) {
            return Err(RepeatedListing { listed, distinct });
        }
        Ok(())
    }

    fn register(&self, hash: u64) {
        let index = usize::try_from(hash >> (64 - INDEX_BITS)).unwrap_or_default();
        // The bit that is set here limits the rank.
        let rest = (hash << INDEX_BITS) | (1 << (INDEX_BITS - 1));
        let rank = u8::try_from(rest.leading_zeros() + 1).unwrap_or(u8::MAX);
        let register = &self.registers[index];
        // Most entries change nothing. A load lets the other workers keep the cache line.
        if register.load(Ordering::Relaxed) < rank {
            register.fetch_max(rank, Ordering::Relaxed);
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, and never negative"
    )]
    fn estimate_distinct(&self) -> u64 {
        let ranks = || {
            self.registers
                .iter()
                .map(|register| register.load(Ordering::Relaxed))
        };
        let sum: f64 = ranks().map(|rank| 0.5_f64.powi(rank.into())).sum();
        let registers = REGISTERS as f64;
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = ranks().filter(|rank| *rank == 0).count();
        // With few entries some registers are empty, and their number gives a better estimate (linear counting).
        let is_small = estimate <= 2.5 * registers && empty > 0;
        let estimate = if is_small {
            registers * (registers / empty as f64).ln()
        } else {
            estimate
        };
        estimate as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists a directory of `size` entries. All directories have the same names.
    fn list(entries: &DistinctEntries, inode: u64, size: u64) -> Result<(), RepeatedListing> {
        let names: Vec<_> = (0..size).map(u64::to_le_bytes).collect();
        entries.count_listed((8, 1, inode), names.iter().map(<[u8; 8]>::as_slice))
    }

    #[test]
    fn different_entries_are_never_too_many() {
        for (directories, size) in [(500_000, 1), (5, 100_000), (1, 500_000)] {
            let entries = DistinctEntries::default();
            for inode in 0..directories {
                assert_eq!(
                    list(&entries, inode, size),
                    Ok(()),
                    "{inode} of {directories}"
                );
            }
            let distinct = entries.estimate_distinct();
            assert!((400_000..600_000).contains(&distinct), "{distinct}");
        }
    }

    /// Directories that are moved during the walk are listed again.
    #[test]
    fn each_entry_may_be_listed_a_few_times() {
        let entries = DistinctEntries::default();
        for _ in 0..4 {
            for inode in 0..20_000 {
                assert_eq!(list(&entries, inode, 2), Ok(()), "{inode}");
            }
        }
    }

    #[test]
    fn repeated_entries_are_soon_too_many() {
        for (before, directories, size) in [
            (0, 30, 1),
            (0, 1, 2000),
            (100_000, 30, 1),
            (100_000, 1, 50_000),
        ] {
            let entries = DistinctEntries::default();
            for inode in 0..before {
                assert_eq!(list(&entries, inode, 1), Ok(()));
            }
            let distinct = before + directories * size;
            let limit = 10 * distinct.max(MIN_LISTED);
            let mut inodes = (0..limit / size).map(|index| before + index % directories);
            let ended = inodes.find_map(|inode| list(&entries, inode, size).err());
            let RepeatedListing { listed, distinct } = ended.expect("the listing ends");
            assert!(listed > distinct * MAX_REPEATS, "{listed} {distinct}");
        }
    }

    #[test]
    fn an_empty_directory_counts_only_as_an_entry_of_its_parent() {
        let entries = DistinctEntries::default();
        assert_eq!(list(&entries, 1, 20_000), Ok(()));
        for _ in 0..200_000 {
            assert_eq!(list(&entries, 2, 0), Ok(()));
        }
    }
}
