//! Which of many devices conflict with one. Some may be on a file system that hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::{Aliases, Device, DeviceError, DeviceNumber, SYSFS, aliases};
use crate::patience::{about_loop, answered};

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
    let silent = silent(
        devices
            .iter()
            .flat_map(|(_, loops)| loops)
            .copied()
            .collect(),
    )?;
    let mut conflicting = Vec::new();
    for (device, loops) in devices {
        if let Some(silent) = loops.iter().find(|it| silent.contains(it)) {
            tracing::warn!(%device, %silent, "what it shows can't be told: its file doesn't answer");
            continue;
        }
        match Device::aliases_of(device) {
            Ok(aliases) if aliases.conflicts_with(own) => conflicting.push(device),
            Err(error) if aliases::name(sysfs, device)?.is_some() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(conflicting)
}

/// Those of the loop devices whose file doesn't answer.
fn silent(loops: BTreeSet<DeviceNumber>) -> Result<BTreeSet<DeviceNumber>, DeviceError> {
    let mut nodes = BTreeMap::new();
    for device in loops {
        if let Some(name) = aliases::name(Path::new(SYSFS), device)? {
            nodes.insert(device, about_loop(&Path::new("/dev").join(name)));
        }
    }
    let questions: Vec<_> = nodes.values().cloned().collect();
    let answered = answered(&questions, PATIENCE).map_err(DeviceError::Unasked)?;
    let devices = nodes.into_keys().zip(answered);
    Ok(devices
        .filter_map(|(device, answers)| (!answers).then_some(device))
        .collect())
}
