//! Who is killed, and how often that was.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// Whom a pod's life is disturbed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    Nobody,
    /// runcrust, at some step of a create.
    Runcrust,
    /// The hook, at some step of a create.
    Hook,
    /// The delegate, at some moment of a create.
    Delegate,
    /// The hook that releases, at some step of it.
    Release,
    /// A container that writes.
    App,
    /// The sandbox of containers that write.
    Sandbox,
    /// All of them at once.
    Pod,
}

/// Some pods live retry_lost_race.
pub(crate) const KILLS: [Kill; 9] = [
    Kill::Nobody,
    Kill::Nobody,
    Kill::Runcrust,
    Kill::Hook,
    Kill::Delegate,
    Kill::Release,
    Kill::App,
    Kill::Sandbox,
    Kill::Pod,
];

/// How often each was.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    by_kind: [usize; Kill::Pod as usize + 1],
    /// Creates that were refused and tried again, as kubelet does.
    pub(crate) refused: usize,
}

impl Tally {
    pub(crate) fn count(&mut self, kill: Kill) {
        self.by_kind[kill as usize] += 1;
    }

    /// How many kills there were.
    pub(crate) fn killed(&self) -> usize {
        self.by_kind[Kill::Runcrust as usize..].iter().sum()
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        for (sum, more) in self.by_kind.iter_mut().zip(other.by_kind) {
            *sum += more;
        }
        self.refused += other.refused;
        self
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "killed:")?;
        for kill in KILLS.iter().skip(2) {
            let times = self.by_kind[*kill as usize];
            write!(formatter, " {kill:?} {times}")?;
        }
        write!(formatter, "; creates tried again: {}", self.refused)
    }
}
