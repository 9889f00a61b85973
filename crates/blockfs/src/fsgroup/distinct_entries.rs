//! Detects that a walk lists the same directories over and over. A directory has one name; in a
//! hostile or corrupt file system that gives each two, thirty levels are a thousand million paths.
//!
//! The file system's own number of inodes is no bound: btrfs has no such number (statfs(2) returns 0),
//! under a project quota ext4 and xfs return the project's instead, and a hostile superblock can claim
//! any. So the number of different entries is estimated, in 1 KiB whatever the size of the tree
//! (`HyperLogLog`: Flajolet et al., 2007), and compared with the number of entries listed. An entry is a
//! name in a directory: a file with many hard links is as many entries, and a directory with many files
//! weighs as much as the work it makes. The hash is keyed anew for each walk, so that nobody can choose
//! names or inode numbers that mislead it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::entry::InodeId;

/// Number of registers: the standard error of the estimate is 3 %.
const REGISTERS: usize = 1024;
const INDEX_BITS: u32 = REGISTERS.ilog2();
/// Minimum number of entries listed before the ratio is checked.
const LEAST: u64 = 8192;
/// Number of entries listed between two checks.
const INTERVAL: u64 = 1024;
/// Maximum average number of times that an entry is listed. In a live tree a directory that is moved is
/// listed again.
const TIMES: u64 = 8;

/// Counters of the entries that a walk listed.
#[derive(Debug)]
pub(super) struct DistinctEntries {
    listed: AtomicU64,
    registers: Box<[AtomicU8]>,
    hasher: RandomState,
}

/// The error for a walk that lists the same entries over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepeatedListing {
    pub(super) listed: u64,
    /// Estimated number of different entries.
    pub(super) different: u64,
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
    /// EntryCounts entries that were listed in a directory.
    pub(super) fn list<'n>(
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
        if listed < LEAST || before / INTERVAL == listed / INTERVAL {
            return Ok(());
        }
        let different = self.different();
        if listed > different.saturating_mul(TIMES) {
            return Err(RepeatedListing { listed, different });
        }
        Ok(())
    }

    fn register(&self, hash: u64) {
        let index = usize::try_from(hash >> (64 - INDEX_BITS)).unwrap_or_default();
        // At least one bit is set, which bounds the rank.
        let rest = (hash << INDEX_BITS) | (1 << (INDEX_BITS - 1));
        let rank = u8::try_from(rest.leading_zeros() + 1).unwrap_or(u8::MAX);
        let register = &self.registers[index];
        // Most change nothing: a load leaves the cache line with the other workers as well.
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
    fn different(&self) -> u64 {
        let ranks = || self.registers.iter().map(|it| it.load(Ordering::Relaxed));
        let sum: f64 = ranks().map(|rank| 0.5_f64.powi(rank.into())).sum();
        let registers = REGISTERS as f64;
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = ranks().filter(|rank| *rank == 0).count();
        // Few leave registers empty, which tells more.
        let few = estimate <= 2.5 * registers && empty > 0;
        let estimate = if few {
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

    /// Lists a directory of `size` entries, by the same names whichever it is.
    fn list(met: &DistinctEntries, inode: u64, size: u64) -> Result<(), RepeatedListing> {
        let names: Vec<_> = (0..size).map(u64::to_le_bytes).collect();
        met.list((8, 1, inode), names.iter().map(<[u8; 8]>::as_slice))
    }

    #[test]
    fn different_entries_are_never_too_many() {
        for (directories, size) in [(500_000, 1), (5, 100_000), (1, 500_000)] {
            let met = DistinctEntries::default();
            for inode in 0..directories {
                assert_eq!(list(&met, inode, size), Ok(()), "{inode} of {directories}");
            }
            let different = met.different();
            assert!((400_000..600_000).contains(&different), "{different}");
        }
    }

    /// Directories that are moved during the walk are listed again.
    #[test]
    fn each_may_be_met_a_few_times() {
        let met = DistinctEntries::default();
        for _ in 0..4 {
            for inode in 0..20_000 {
                assert_eq!(list(&met, inode, 2), Ok(()), "{inode}");
            }
        }
    }

    #[test]
    fn repeated_entries_soon_count_as_too_many() {
        for (before, directories, size) in [
            (0, 30, 1),
            (0, 1, 2000),
            (100_000, 30, 1),
            (100_000, 1, 50_000),
        ] {
            let met = DistinctEntries::default();
            for inode in 0..before {
                assert_eq!(list(&met, inode, 1), Ok(()));
            }
            let different = before + directories * size;
            let limit = 10 * different.max(LEAST);
            let mut turns = (0..limit / size).map(|turn| before + turn % directories);
            let ended = turns.find_map(|inode| list(&met, inode, size).err());
            let RepeatedListing { listed, different } = ended.expect("it ends");
            assert!(listed > different * TIMES, "{listed} {different}");
        }
    }

    #[test]
    fn an_empty_directory_counts_by_its_name_alone() {
        let met = DistinctEntries::default();
        assert_eq!(list(&met, 1, 20_000), Ok(()));
        for _ in 0..200_000 {
            assert_eq!(list(&met, 2, 0), Ok(()));
        }
    }
}
