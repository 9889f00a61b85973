//! Reproducible pseudorandom numbers.

use std::time::SystemTime;

/// Returns `RUNCRUST_TORTURE_SEED`, or the number of days since 1970, so that other cases are tried every day. It
/// prints the seed, with which a failure can be repeated.
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

/// A pseudorandom generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Makes a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let limit = u64::try_from(limit).expect("usize fits");
        usize::try_from(mixed % limit).expect("below a usize")
    }

    /// Returns true with a probability of one in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns one element of a slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
