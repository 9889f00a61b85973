//! Whether a device is still the disk that was staged.
//!
//! Nothing holds a device between its stage and its first mount. Where it is detached meanwhile
//! (`losetup -D`, a disk that is taken away) its name and its number are soon another's, and the pod
//! would have the data of another volume.

use std::os::fd::OwnedFd;

use crust_state::MountInfo;
use rustix::fs::OFlags;

use super::error::Cause;
use crate::device::Device;

/// Fails where it is another one. Nothing is compared where nobody wrote which it was (an entry of an
/// earlier version, or of another writer), or the kernel doesn't tell which it is.
pub(super) fn check(info: &MountInfo, device: &Device) -> Result<(), Cause> {
    let Some(staged) = info.disk_seq else {
        return Ok(());
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

/// The same, and the device can't be detached while the descriptor is open: a mount takes it by its name.
pub(super) fn hold(info: &MountInfo, device: &Device) -> Result<Option<OwnedFd>, Cause> {
    if info.disk_seq.is_none() {
        return Ok(None);
    }
    // What can't be opened can't be mounted either, and the mount says why.
    let held = device.open_for_reading(OFlags::empty()).ok();
    check(info, device)?;
    Ok(held)
}
