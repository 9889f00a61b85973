//! Log lines that would repeat.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Limits a log line to one a minute.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    told: Mutex<Option<Instant>>,
}

impl Reminder {
    /// Whether the line is due. It counts as written then.
    pub(super) fn is_due(&self) -> bool {
        // Nothing panics while it is held.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.is_none_or(|told| told.elapsed() >= INTERVAL);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }
}
