//! Counting the volumes for whoever asks: a thread waits for the node's files, and may wait for long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::node::Counts;

/// What an answer waits for them; then it has the numbers that were last known.
const PATIENCE: Duration = Duration::from_secs(2);

type Counted = Result<Counts, String>;

/// One count at a time, however many ask.
pub(super) struct Counting {
    start: Box<dyn Fn() -> JoinHandle<Counted> + Send + Sync>,
    /// Whoever asks next waits for it too, if it was too slow for who began it.
    under_way: Mutex<Option<JoinHandle<Counted>>>,
    /// That it fails is logged once.
    failing: AtomicBool,
}

impl Counting {
    pub(super) fn new(start: impl Fn() -> JoinHandle<Counted> + Send + Sync + 'static) -> Self {
        Self {
            start: Box::new(start),
            under_way: Mutex::default(),
            failing: AtomicBool::default(),
        }
    }

    /// The numbers, if they can be had soon.
    pub(super) async fn count(&self) -> Option<Counts> {
        let counted = timeout(PATIENCE, self.counted()).await;
        let late = || Err(format!("not counted within {} s", PATIENCE.as_secs()));
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

    async fn counted(&self) -> Counted {
        let mut under_way = self.under_way.lock().await;
        // One that nobody waited for tells of another time.
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
        let counting = Counting::new(move || {
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
            assert_eq!(counting.count().await, None);
        }
        assert_eq!(
            begun.load(Ordering::Relaxed),
            1,
            "one thread hangs, not three"
        );
        hanging.notify_one();
        let counts = counting.count().await;
        assert_eq!(counts.map(|counts| counts.staged), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_to_ask_takes_nothing_with_him() {
        let counting = Counting::new(|| tokio::spawn(std::future::pending()));
        let asked = timeout(Duration::from_millis(1), counting.count()).await;
        assert!(asked.is_err());
        assert!(counting.under_way.lock().await.is_some());
    }
}
