//! Log lines that would repeat.

use std::time::{Duration, Instant};

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Limits a log line to one a minute.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    told: Option<Instant>,
}

impl Reminder {
    /// Whether the line is due. It counts as written then.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.told.is_none_or(|told| told.elapsed() >= INTERVAL);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }
}
