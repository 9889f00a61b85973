//! Whether a device is still the disk that was staged.
//!
//! Nothing holds a device between its stage and its first mount. Where it is detached meanwhile
//! (`losetup -D`, a disk that is taken away) its name and its number are soon another's, and the pod
//! would have the data of another volume.

use crust_state::MountInfo;

use super::error::Cause;
use crust_blockfs::device::{Device, DeviceFacts};

/// Fails where it is another one. Nothing is compared where nobody wrote which it was (an entry of an
/// earlier version, or of another writer), or the kernel doesn't tell which it is.
pub(super) fn check(info: &MountInfo, device: &DeviceFacts) -> Result<(), Cause> {
    let Some(staged) = info.disk_seq else {
        return by_path(info, device);
    };
    match device.disk_seq()? {
        Some(now) if now != staged => Err(Cause::OtherDisk {
            device: device.path().display().to_string(),
            staged,
            now,
        }),
        _ => Ok(()),
    }
}

/// A device that was found by its number on a record is the one that was staged if the path says so as
/// well: a number may be another disk's by now, where nobody has it mounted.
fn by_path(info: &MountInfo, device: &DeviceFacts) -> Result<(), Cause> {
    if device.path() == info.device {
        return Ok(());
    }
    let (now, then) = (Device::open(&info.device)?.number(), device.number());
    if now == then {
        return Ok(());
    }
    Err(Cause::Moved {
        path: info.device.display().to_string(),
        now,
        then,
    })
}
