//! Waiting for conditions instead of sleeping.

use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The shortest interval between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(5);

/// The longest interval between two checks of a condition.
const LONGEST_INTERVAL: Duration = Duration::from_millis(250);

/// Waits until `condition` holds. Panics with `what` after `limit`, or later on a slow machine.
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    assert!(
        holds_within(limit, condition),
        "timed out after {:?}: {what}",
        scaled_timeout(limit)
    );
}

/// Waits until `condition` holds, as [`wait_until`] does, without blocking other tasks.
pub async fn wait_until_async(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let limit = scaled_timeout(limit);
    let wait = async {
        while !condition() {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    let waited = tokio::time::timeout(limit, wait).await;
    assert!(waited.is_ok(), "timed out after {limit:?}: {what}");
}

/// Multiplies a timeout that suits an ordinary machine by `RUNCRUST_TEST_SLOWNESS`.
pub fn scaled_timeout(limit: Duration) -> Duration {
    static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
        std::env::var("RUNCRUST_TEST_SLOWNESS").map_or(1, |times| {
            times.parse().expect("RUNCRUST_TEST_SLOWNESS is a number")
        })
    });
    limit * *SLOWNESS
}

/// Waits until `condition` holds, and returns whether it did before `limit` passed. Guards can use it, because it never
/// panics.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let limit = scaled_timeout(limit);
    loop {
        let checked = Instant::now();
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        // A condition that runs a program is checked less often. Otherwise the tests that wait would take the processors
        // from the others.
        let pause = checked.elapsed() * 4;
        sleep(pause.clamp(INTERVAL, LONGEST_INTERVAL));
    }
}
