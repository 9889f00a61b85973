//! Waiting for a condition instead of sleeping.

use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at a condition.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    assert!(
        holds_within(limit, condition),
        "waited {:?} in vain: {what}",
        scaled_timeout(limit)
    );
}

/// The same for a client's future, which others go on beside.
pub async fn wait_until_async(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let limit = scaled_timeout(limit);
    let wait = async {
        while !condition() {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    let waited = tokio::time::timeout(limit, wait).await;
    assert!(waited.is_ok(), "waited {limit:?} in vain: {what}");
}

/// A limit that is right for an ordinary machine, for one that is `RUNCRUST_TEST_SLOWNESS` times as
/// slow.
pub(crate) fn scaled_timeout(limit: Duration) -> Duration {
    static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
        std::env::var("RUNCRUST_TEST_SLOWNESS").map_or(1, |times| {
            times.parse().expect("RUNCRUST_TEST_SLOWNESS is a number")
        })
    });
    limit * *SLOWNESS
}

/// Whether `condition` holds before `limit` has passed; for guards, which never panic.
pub fn holds_within(limit: Duration, condition: impl FnMut() -> bool) -> bool {
    holds_within_polling(INTERVAL, limit, condition)
}

/// The same where a look is a program's run, or a question to a daemon.
pub(crate) fn holds_within_polling(
    interval: Duration,
    limit: Duration,
    mut condition: impl FnMut() -> bool,
) -> bool {
    let start = Instant::now();
    let limit = scaled_timeout(limit);
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        sleep(interval);
    }
}
