//! Which of many devices conflict with one. Some may be on a file system that hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{Aliases, DeviceError, DeviceNumber, SYSFS, aliases, shown_by};
use crate::patience::{about_loop, answers};
use crate::sys::loops::LoopStatus;

/// For all together, and once more for those that don't answer. A file that `own` is on, too, has been
/// asked just before, and mostly answers from a cache.
const PATIENCE: Duration = Duration::from_secs(1);

/// Those of the devices that are the same bytes as `own`, or lie on them, or the other way round. One
/// that is gone isn't. Nor is one whose file doesn't answer, or only with an error: that is on a file
/// system which hangs or has failed, and the one of `own`'s has just answered. Whatever else can't be told is an error.
pub(super) fn conflicting(
    own: &Aliases,
    devices: Vec<DeviceNumber>,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let sysfs = Path::new(SYSFS);
    let loops_of = |device| (device, aliases::loops_among(sysfs, device));
    let devices: Vec<_> = devices.into_iter().map(loops_of).collect();
    let loops = devices.iter().flat_map(|(_, loops)| loops);
    let asked = Asked::of(loops.collect())?;
    let mut conflicting = Vec::new();
    for (device, loops) in devices {
        if let Some(silent) = loops.keys().find(|it| asked.silent.contains(it)) {
            tracing::warn!(%device, %silent, "what it shows can't be told: its file doesn't answer");
            continue;
        }
        // A machine may have thousands of loop devices: none is asked a second time.
        let said = |device| match asked.shown.get(&device) {
            Some(status) => Ok(Some(*status)),
            None => shown_by(device),
        };
        let shown = asked.shown.get(&device);
        let aliases = shown.and_then(|status| Aliases::of_shown(device, status));
        match aliases.map_or_else(|| Aliases::read(sysfs, said, device), Ok) {
            Ok(aliases) if aliases.conflicts_with(own) => conflicting.push(device),
            Err(error) if aliases::name(sysfs, device)?.is_some() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(conflicting)
}

/// What loop devices said.
struct Asked {
    /// Those that told what they show.
    shown: BTreeMap<DeviceNumber, LoopStatus>,
    /// Those whose file doesn't answer.
    silent: BTreeSet<DeviceNumber>,
}

impl Asked {
    fn of(loops: BTreeMap<&DeviceNumber, &OsString>) -> Result<Self, DeviceError> {
        let node = |name| Path::new("/dev").join(name);
        let questions: Vec<_> = loops.values().map(|name| about_loop(&node(name))).collect();
        let answers = answers(&questions, PATIENCE).map_err(DeviceError::Unasked)?;
        let (mut shown, mut silent) = (BTreeMap::new(), BTreeSet::new());
        for (device, answer) in loops.into_keys().zip(answers) {
            match answer {
                // By the node's own number: it may be another device's.
                Some(answer) => shown.extend(answer.shown),
                None => {
                    silent.insert(*device);
                }
            }
        }
        Ok(Self { shown, silent })
    }
}
