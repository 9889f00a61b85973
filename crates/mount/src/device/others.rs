//! Which of many devices conflict with one. Some may be on a file system that hangs.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Aliases, Device, DeviceNumber, SYSFS, aliases};
use crate::sys::unshare_fs;

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
    let mut answers = Vec::new();
    let mut rest = VecDeque::from(devices);
    let mut left = PATIENCE;
    while !rest.is_empty() {
        let told = worker(rest.iter().copied().collect(), look);
        loop {
            let begin = Instant::now();
            let Ok(found) = told.recv_timeout(left.max(IMPATIENCE)) else {
                break;
            };
            left = left.saturating_sub(begin.elapsed());
            answers.extend(rest.pop_front().map(|device| (device, found)));
            if rest.is_empty() {
                return answers;
            }
        }
        if let Some(device) = rest.pop_front() {
            tracing::warn!(%device, "what it shows can't be told: it doesn't answer");
        }
        left = Duration::ZERO;
    }
    answers
}

/// Looks at one after the other, in a thread that may be left behind.
fn worker<T: Send + 'static>(
    devices: Vec<DeviceNumber>,
    look: impl Fn(DeviceNumber) -> Option<T> + Send + 'static,
) -> Receiver<Option<T>> {
    let (ready, is_ready) = channel();
    let (tell, told) = channel();
    // A thread that can't be started, or can't be one of its own, tells nothing.
    let _ = thread::Builder::new().spawn(move || {
        let own = unshare_fs();
        let _ = ready.send(());
        if own.is_err() {
            return;
        }
        for device in devices {
            if tell.send(look(device)).is_err() {
                return;
            }
        }
    });
    let _ = is_ready.recv();
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_keeps_nobody_from_it() {
        let devices: Vec<_> = (0..5).map(|minor| DeviceNumber::new(7, minor)).collect();
        let look = |device: DeviceNumber| {
            if device.minor() % 2 == 1 {
                loop {
                    thread::park();
                }
            }
            Some(device.minor())
        };
        let found: Vec<_> = answers(devices, look)
            .into_iter()
            .filter_map(|it| it.1)
            .collect();
        assert_eq!(found, [0, 2, 4]);
        assert!(answers(Vec::new(), look).is_empty());
    }
}
