//! A point in time that bounded work must not pass.

use std::time::{Duration, Instant};

/// When to give up. Callers of the runtime have time-outs of their own (kubelet: four minutes for
/// `RunPodSandbox`, two for the other CRI calls); stopping before them is what lets our own
/// sentence reach the user instead of "context deadline exceeded".
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Gives up `limit` from now.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now().checked_add(limit))
    }

    /// Never gives up.
    #[must_use]
    pub const fn never() -> Self {
        Self(None)
    }

    /// Whether the time is over.
    #[must_use]
    pub fn expired(&self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// This one, or `limit` from now if that comes first.
    #[must_use]
    pub fn at_most(self, limit: Duration) -> Self {
        let other = Self::after(limit);
        match (self.remaining(), other.remaining()) {
            (Some(mine), Some(others)) if mine < others => self,
            _ => other,
        }
    }

    /// Looks again and again, with pauses that grow to 50 ms, until there is an answer; `None` when
    /// there was none in time. It looks once at least.
    pub fn poll<T, E>(
        self,
        mut look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let mut pause = Duration::from_millis(1);
        loop {
            let answer = look()?;
            if answer.is_some() || self.expired() {
                return Ok(answer);
            }
            std::thread::sleep(pause.min(self.remaining().unwrap_or(pause)));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Returns the remaining time; `None` without a limit, and zero once it has passed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.0
            .map(|at| at.saturating_duration_since(Instant::now()))
    }
}
