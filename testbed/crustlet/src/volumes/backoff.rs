//! Delays between retries that double with each failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The delays of kubelet's volume operations.
const INITIAL_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);

/// The last failure of each key, and the delay after it.
#[derive(Debug)]
pub(crate) struct Backoff<K> {
    initial_delay: Duration,
    max_delay: Duration,
    failures: BTreeMap<K, Failure>,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    time: Instant,
    delay: Duration,
}

impl<K: Ord + Clone> Default for Backoff<K> {
    fn default() -> Self {
        Self::new(INITIAL_DELAY, MAX_DELAY)
    }
}

impl<K: Ord + Clone> Backoff<K> {
    /// Creates a backoff. Its delays double from the initial to the maximum delay.
    pub(crate) const fn new(initial_delay: Duration, max_delay: Duration) -> Self {
        Self {
            initial_delay,
            max_delay,
            failures: BTreeMap::new(),
        }
    }

    /// Records a failure. Returns the delay until the next attempt: twice the last one, up to the maximum.
    pub(crate) fn fail(&mut self, key: &K, now: Instant) -> Duration {
        let last = self.failures.get(key).map(|failure| failure.delay);
        let delay = last.map_or(self.initial_delay, |delay| (delay * 2).min(self.max_delay));
        self.failures
            .insert(key.clone(), Failure { time: now, delay });
        delay
    }

    /// Records a success: the next failure has the initial delay.
    pub(crate) fn succeed(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Returns the remaining delay. `None` if the operation may be tried now.
    pub(crate) fn remaining(&self, key: &K, now: Instant) -> Option<Duration> {
        let failure = self.failures.get(key)?;
        let remaining = (failure.time + failure.delay).checked_duration_since(now)?;
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Keeps only the keys for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.failures.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_to_kubelets_limit_and_resets() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let delays: Vec<u128> = (0..10)
            .map(|_| backoff.fail(&"v", now).as_millis())
            .collect();
        assert_eq!(
            delays,
            [
                500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000
            ]
        );
        assert_eq!(backoff.remaining(&"other", now), None);
        let later = now + Duration::from_secs(100);
        assert_eq!(
            backoff.remaining(&"v", later),
            Some(Duration::from_secs(22))
        );
        assert_eq!(
            backoff.remaining(&"v", now + MAX_DELAY),
            None,
            "the delay is over"
        );
        assert_eq!(
            backoff.fail(&"v", later),
            MAX_DELAY,
            "the last delay is remembered"
        );
        backoff.succeed(&"v");
        assert_eq!(backoff.fail(&"v", later), INITIAL_DELAY);
        backoff.retain(|_| false);
        assert_eq!(backoff.remaining(&"v", later), None);
    }
}
