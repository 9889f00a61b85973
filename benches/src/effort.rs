//! The number of repetitions.

/// The number of repetitions of each kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// The rounds of each measurement, if the user has set them.
    pub(crate) rounds: Option<usize>,
    /// The number of calls to the daemon before its memory is measured.
    pub(crate) calls: usize,
    /// The pods that are created and removed.
    pub(crate) pods: usize,
}

impl Effort {
    /// Returns the rounds of a measurement, with the measurement's own default.
    pub(crate) fn rounds(&self, own: usize) -> usize {
        self.rounds.unwrap_or(own)
    }
}
