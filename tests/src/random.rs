//! Numbers that look random and are the same in every run of a seed, so that what failed fails again.

use std::time::SystemTime;

/// `RUNCRUST_TORTURE_SEED`, or the days since 1970, so that something else is tried every day. It is
/// printed, to be set when what failed is to fail again.
pub fn seed() -> u64 {
    let set = std::env::var("RUNCRUST_TORTURE_SEED").unwrap_or_default();
    let seed = if set.is_empty() {
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock");
        now.as_secs() / 86400
    } else {
        set.parse().expect("RUNCRUST_TORTURE_SEED is a number")
    };
    println!("RUNCRUST_TORTURE_SEED={seed}");
    seed
}

/// A generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`, which isn't 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let limit = u64::try_from(limit).expect("usize fits");
        usize::try_from(mixed % limit).expect("below a usize")
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
