//! The numbers of volumes for the metrics. A thread reads the node's files for them, and may wait for long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::node::Counts;

/// How long an answer waits for a count. After that it has the numbers last known.
const TIMEOUT: Duration = Duration::from_secs(2);

type CountResult = Result<Counts, String>;

/// Counts the volumes, once at a time however many ask.
pub(super) struct VolumeCounts {
    start: Box<dyn Fn() -> JoinHandle<CountResult> + Send + Sync>,
    /// A count that was too slow for the one who began it. The next one waits for it too.
    under_way: Mutex<Option<JoinHandle<CountResult>>>,
    /// Whether the last count failed, which is logged once.
    failing: AtomicBool,
}

impl VolumeCounts {
    pub(super) fn new(start: impl Fn() -> JoinHandle<CountResult> + Send + Sync + 'static) -> Self {
        Self {
            start: Box::new(start),
            under_way: Mutex::default(),
            failing: AtomicBool::default(),
        }
    }

    /// Counts, and returns the numbers if they come in time.
    pub(super) async fn latest(&self) -> Option<Counts> {
        let counted = timeout(TIMEOUT, self.counted()).await;
        let late = || Err(format!("not counted within {} s", TIMEOUT.as_secs()));
        match counted.unwrap_or_else(|_| late()) {
            Ok(counts) => {
                self.failing.store(false, Ordering::Relaxed);
                Some(counts)
            }
            Err(why) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!("metrics: volumes: {why}; the numbers last known are told");
                }
                None
            }
        }
    }

    async fn counted(&self) -> CountResult {
        let mut under_way = self.under_way.lock().await;
        // One that nobody has waited for is of an earlier time.
        under_way.take_if(|task| task.is_finished());
        let counted = under_way.get_or_insert_with(&self.start).await;
        *under_way = None;
        counted.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_is_waited_for_once_and_not_for_long() {
        let (begun, hanging) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (starts, goes_on) = (Arc::clone(&begun), Arc::clone(&hanging));
        let counting = VolumeCounts::new(move || {
            starts.fetch_add(1, Ordering::Relaxed);
            let goes_on = Arc::clone(&goes_on);
            tokio::spawn(async move {
                goes_on.notified().await;
                Ok(Counts {
                    staged: 2,
                    in_use: 1,
                })
            })
        });
        for _ in 0..3 {
            assert_eq!(counting.latest().await, None);
        }
        assert_eq!(
            begun.load(Ordering::Relaxed),
            1,
            "one thread hangs, not three"
        );
        hanging.notify_one();
        let counts = counting.latest().await;
        assert_eq!(counts.map(|counts| counts.staged), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_to_ask_takes_nothing_with_him() {
        let counting = VolumeCounts::new(|| tokio::spawn(std::future::pending()));
        let asked = timeout(Duration::from_millis(1), counting.latest()).await;
        assert!(asked.is_err());
        assert!(counting.under_way.lock().await.is_some());
    }
}
