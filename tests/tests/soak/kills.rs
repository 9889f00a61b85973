//! The processes that are killed, and a tally of the kills.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// The process that is killed during a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    None,
    /// runcrust, at a random step of a create.
    Runcrust,
    /// The hook, at a random step of a create.
    Hook,
    /// The delegate, at a random time during a create.
    Delegate,
    /// The hook that releases a volume, at a random step.
    Release,
    /// A container that writes.
    App,
    /// The sandbox of containers that write.
    Sandbox,
    /// The sandbox and its containers at once.
    Pod,
}

/// The kinds to choose from. Some pods run undisturbed.
pub(crate) const KILLS: [Kill; 9] = [
    Kill::None,
    Kill::None,
    Kill::Runcrust,
    Kill::Hook,
    Kill::Delegate,
    Kill::Release,
    Kill::App,
    Kill::Sandbox,
    Kill::Pod,
];

/// The number of times that each kind of kill happened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    by_kind: [usize; Kill::Pod as usize + 1],
    /// Number of creates that were refused and then retried, as kubelet would retry them.
    pub(crate) refused: usize,
}

impl Tally {
    pub(crate) fn count(&mut self, kill: Kill) {
        self.by_kind[kill as usize] += 1;
    }

    /// Returns the number of kills.
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
        write!(formatter, "; repeated creates: {}", self.refused)
    }
}
