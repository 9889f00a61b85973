//! Waiting for a condition instead of sleeping.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at a condition.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Panics
///
/// Says `what` it waited for when `limit` has passed.
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    assert!(
        comes_true(limit, condition),
        "waited {limit:?} in vain: {what}"
    );
}

/// Whether `condition` holds before `limit` has passed; for guards, which never panic.
pub(crate) fn comes_true(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        sleep(INTERVAL);
    }
}
