//! Which of many devices conflict with one. Some may be on a file system that hangs.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Aliases, Device, DeviceNumber, SYSFS, aliases};
use crate::patience::within;

/// For all that hang, together; then each of them has the shorter one.
const PATIENCE: Duration = Duration::from_secs(3);
const IMPATIENCE: Duration = Duration::from_millis(100);

/// Those of the devices that are the same bytes as `own`, or lie on them, or the other way round. One
/// that is gone isn't. Nor is one whose file doesn't answer: that is on a file system which hangs, and
/// the one of `own`'s has just answered.
pub(super) fn conflicting(own: &Aliases, devices: Vec<DeviceNumber>) -> Vec<DeviceNumber> {
    let (asking, telling): (Vec<_>, Vec<_>) = devices
        .into_iter()
        .partition(|device| aliases::may_ask_a_file(Path::new(SYSFS), *device));
    let look = |device: DeviceNumber| Device::aliases_of(device).ok();
    let conflict = |found: Option<Aliases>| found.is_some_and(|found| found.conflicts_with(own));
    let mut found = answers(asking, look);
    found.extend(telling.into_iter().map(|device| (device, look(device))));
    let conflicting = found.into_iter().filter_map(|(device, aliases)| {
        let conflicts = conflict(aliases);
        conflicts.then_some(device)
    });
    conflicting.collect()
}

/// What is found of each that answers in time.
fn answers<T: Send + 'static>(
    devices: Vec<DeviceNumber>,
    look: impl Fn(DeviceNumber) -> Option<T> + Copy + Send + 'static,
) -> Vec<(DeviceNumber, Option<T>)> {
    let mut left = PATIENCE;
    let answers = devices.into_iter().map(|device| {
        let begin = Instant::now();
        let found = within(left.max(IMPATIENCE), move || look(device));
        left = left.saturating_sub(begin.elapsed());
        if found.is_none() {
            tracing::warn!(%device, "what it shows can't be told: it doesn't answer");
        }
        (device, found.flatten())
    });
    answers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_keeps_nobody_from_it() {
        let devices: Vec<_> = (0..5).map(|minor| DeviceNumber::new(7, minor)).collect();
        let look = |device: DeviceNumber| {
            while device.minor() % 2 == 1 {
                std::thread::park();
            }
            Some(device.minor())
        };
        let found: Vec<_> = answers(devices, look)
            .into_iter()
            .filter_map(|(_, found)| found)
            .collect();
        assert_eq!(found, [0, 2, 4]);
    }
}
