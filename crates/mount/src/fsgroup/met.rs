//! Detects that a walk enters the same directories over and over. A directory has one name; in a
//! hostile or corrupt file system that gives each two, thirty levels are a thousand million paths.
//!
//! The file system's own number of inodes is no bound: btrfs has no such number (statfs(2) returns 0),
//! under a project quota ext4 and xfs return the project's instead, and a hostile superblock can claim
//! any. So the number of different directories is estimated, in 1 KiB whatever the size of the tree (`HyperLogLog`: Flajolet et al., 2007). Its hash is keyed anew
//! for each walk, so that nobody can choose inode numbers that mislead it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::touch::Identity;

/// Number of registers: the standard error of the estimate is 3 %.
const REGISTERS: usize = 1024;
const INDEX_BITS: u32 = REGISTERS.ilog2();
/// Minimum number of directories entered before the ratio is checked.
const LEAST: u64 = 8192;
/// Maximum average number of times that a directory is entered. In a live tree a directory that is moved
/// is entered again.
const TIMES: u64 = 8;

/// Counters of the directories that a walk entered.
#[derive(Debug)]
pub(super) struct Met {
    entered: AtomicU64,
    registers: Box<[AtomicU8]>,
    hasher: RandomState,
}

/// The error for a walk that enters the same directories over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooOften {
    pub(super) entered: u64,
    /// Estimated number of different directories.
    pub(super) different: u64,
}

impl Default for Met {
    fn default() -> Self {
        Self {
            entered: AtomicU64::new(0),
            registers: (0..REGISTERS).map(|_| AtomicU8::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Met {
    /// Counts a directory that is entered.
    pub(super) fn enter(&self, directory: Identity) -> Result<(), TooOften> {
        let hash = self.hasher.hash_one(directory);
        let index = usize::try_from(hash >> (64 - INDEX_BITS)).unwrap_or_default();
        // At least one bit is set, which bounds the rank.
        let rest = (hash << INDEX_BITS) | (1 << (INDEX_BITS - 1));
        let rank = u8::try_from(rest.leading_zeros() + 1).unwrap_or(u8::MAX);
        self.registers[index].fetch_max(rank, Ordering::Relaxed);
        let entered = self.entered.fetch_add(1, Ordering::Relaxed) + 1;
        if entered < LEAST || !entered.is_multiple_of(LEAST / 8) {
            return Ok(());
        }
        let different = self.different();
        if entered > different.saturating_mul(TIMES) {
            return Err(TooOften { entered, different });
        }
        Ok(())
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

    #[test]
    fn different_directories_are_never_too_many() {
        let met = Met::default();
        for inode in 0..500_000 {
            assert_eq!(met.enter((8, 1, inode)), Ok(()), "{inode}");
        }
        let different = met.different();
        assert!((400_000..600_000).contains(&different), "{different}");
    }

    /// Directories that are moved during the walk are entered again.
    #[test]
    fn each_may_be_met_a_few_times() {
        let met = Met::default();
        for _ in 0..4 {
            for inode in 0..20_000 {
                assert_eq!(met.enter((8, 1, inode)), Ok(()), "{inode}");
            }
        }
    }

    #[test]
    fn the_same_few_over_and_over_are_too_many_soon_whatever_came_before() {
        for before in [0, 100_000] {
            let met = Met::default();
            for inode in 0..before {
                assert_eq!(met.enter((8, 1, inode)), Ok(()));
            }
            let limit = 10 * before.max(LEAST);
            let ended = (0..limit).find_map(|turn| met.enter((8, 2, turn % 30)).err());
            let TooOften { entered, different } = ended.expect("it ends");
            assert!(entered > different * TIMES, "{entered} {different}");
        }
    }
}
