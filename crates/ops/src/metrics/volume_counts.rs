//! Counts the volumes for the metrics. The count reads the node's files in a thread, which may block for long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::node::Counts;

/// The timeout of a count. After it, a page has the last known numbers.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

type CountResult = Result<Counts, String>;

/// Counts the volumes. Concurrent requests share one count.
pub(super) struct VolumeCounts {
    start: Box<dyn Fn() -> JoinHandle<CountResult> + Send + Sync>,
    /// A count that is still running after the request that started it timed out. The next request waits for it.
    running: Mutex<Option<JoinHandle<CountResult>>>,
    /// Whether the last count failed. Only the first failure is logged.
    is_failing: AtomicBool,
}

impl VolumeCounts {
    pub(super) fn new(start: impl Fn() -> JoinHandle<CountResult> + Send + Sync + 'static) -> Self {
        Self {
            start: Box::new(start),
            running: Mutex::default(),
            is_failing: AtomicBool::default(),
        }
    }

    /// Counts the volumes; `None` if that fails or times out.
    pub(super) async fn latest(&self) -> Option<Counts> {
        let result = timeout(COUNT_TIMEOUT, self.count()).await;
        let timed_out = || Err(format!("no result within {} s", COUNT_TIMEOUT.as_secs()));
        match result.unwrap_or_else(|_| timed_out()) {
            Ok(counts) => {
                self.is_failing.store(false, Ordering::Relaxed);
                Some(counts)
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "metrics: cannot count the volumes: {error}; the last known numbers are shown"
                    );
                }
                None
            }
        }
    }

    async fn count(&self) -> CountResult {
        let mut running = self.running.lock().await;
        // A finished count that no request has waited for is outdated.
        running.take_if(|task| task.is_finished());
        let result = running.get_or_insert_with(&self.start).await;
        *running = None;
        result.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_count_that_hangs_times_out_and_is_not_repeated() {
        let (started, wakeup) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (starts, hang) = (Arc::clone(&started), Arc::clone(&wakeup));
        let counts = VolumeCounts::new(move || {
            starts.fetch_add(1, Ordering::Relaxed);
            let hang = Arc::clone(&hang);
            tokio::spawn(async move {
                hang.notified().await;
                Ok(Counts {
                    staged: 2,
                    in_use: 1,
                })
            })
        });
        for _ in 0..3 {
            assert_eq!(counts.latest().await, None);
        }
        assert_eq!(
            started.load(Ordering::Relaxed),
            1,
            "one thread hangs, not three"
        );
        wakeup.notify_one();
        let latest = counts.latest().await;
        assert_eq!(latest.map(|counts| counts.staged), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_keeps_the_running_count() {
        let counts = VolumeCounts::new(|| tokio::spawn(std::future::pending()));
        let cancelled = timeout(Duration::from_millis(1), counts.latest()).await;
        assert!(cancelled.is_err());
        assert!(counts.running.lock().await.is_some());
    }
}
