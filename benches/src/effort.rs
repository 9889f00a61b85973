//! How much a row does.

/// How much is done for a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Of each measurement, where somebody said how many.
    pub(crate) rounds: Option<usize>,
    /// Of the daemon.
    pub(crate) calls: usize,
    /// Made and removed.
    pub(crate) pods: usize,
}

impl Effort {
    /// The rounds of a measurement that by itself has so many.
    pub(crate) fn rounds(&self, own: usize) -> usize {
        self.rounds.unwrap_or(own)
    }
}
