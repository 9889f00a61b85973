//! Delays that grow with each failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The first delay of kubelet's volume operations.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(122);

/// The failures by their subjects, with the delay of each.
#[derive(Debug)]
pub(crate) struct Backoff<K> {
    first: Duration,
    longest: Duration,
    failed: BTreeMap<K, Failed>,
}

#[derive(Debug, Clone, Copy)]
struct Failed {
    at: Instant,
    pause: Duration,
}

impl<K: Ord + Clone> Default for Backoff<K> {
    fn default() -> Self {
        Self::new(FIRST, LONGEST)
    }
}

impl<K: Ord + Clone> Backoff<K> {
    /// With a first pause, which doubles up to the longest.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failed: BTreeMap::new(),
        }
    }

    /// It failed (again): the pause until the next time, which is twice the one before.
    pub(crate) fn fail(&mut self, key: &K, now: Instant) -> Duration {
        let before = self.failed.get(key).map(|failed| failed.pause);
        let pause = before.map_or(self.first, |pause| (pause * 2).min(self.longest));
        self.failed.insert(key.clone(), Failed { at: now, pause });
        pause
    }

    /// It worked.
    pub(crate) fn succeed(&mut self, key: &K) {
        self.failed.remove(key);
    }

    /// How long it still has to wait; `None` when it may be tried.
    pub(crate) fn remaining(&self, key: &K, now: Instant) -> Option<Duration> {
        let failed = self.failed.get(key)?;
        let remaining = (failed.at + failed.pause).checked_duration_since(now)?;
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Forgets what nobody asks for any more.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.failed.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_to_kubelets_limit_and_resets() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let pauses: Vec<u128> = (0..10)
            .map(|_| backoff.fail(&"v", now).as_millis())
            .collect();
        assert_eq!(
            pauses,
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
            backoff.remaining(&"v", now + LONGEST),
            None,
            "it may be tried"
        );
        assert_eq!(backoff.fail(&"v", later), LONGEST, "and is remembered");
        backoff.succeed(&"v");
        assert_eq!(backoff.fail(&"v", later), FIRST);
        backoff.retain(|_| false);
        assert_eq!(backoff.remaining(&"v", later), None);
    }
}
