//! The point in time at which an operation gives up.

use std::time::{Duration, Instant};

/// The point in time at which an operation gives up.
///
/// Callers of the runtime have timeouts of their own: kubelet waits four minutes for `RunPodSandbox` and two for the
/// other CRI calls. An operation has to give up earlier, or the user sees "context deadline exceeded" instead of its
/// error.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline that is `limit` from now.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now().checked_add(limit))
    }

    /// Returns a deadline that never expires.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Returns whether the deadline has passed.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// Returns the earlier of this deadline and the one that is `limit` from now.
    #[must_use]
    pub fn at_most(self, limit: Duration) -> Self {
        let other = Self::after(limit);
        match (self.remaining(), other.remaining()) {
            (Some(own), Some(limited)) if own < limited => self,
            _ => other,
        }
    }

    /// Calls `attempt` until it returns a value or an error, at least once, and sleeps between the calls: 1 ms at
    /// first, then twice as long each time, up to 50 ms. Returns `None` if the deadline passes first.
    pub fn poll<T, E>(
        self,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let mut pause = Duration::from_millis(1);
        loop {
            let value = attempt()?;
            if value.is_some() || self.is_expired() {
                return Ok(value);
            }
            std::thread::sleep(pause.min(self.remaining().unwrap_or(pause)));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Returns the remaining time: zero once the deadline has passed, and `None` if it never expires.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.0
            .map(|at| at.saturating_duration_since(Instant::now()))
    }
}
