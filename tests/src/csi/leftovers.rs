//! Removes what a killed driver leaves on the machine.

use std::path::Path;

use crate::{loopdev, mounts};

/// Unmounts everything in kubelet's directory, and detaches the loop devices on files of the data directory.
pub(super) fn put_away(kubelet: &Path, data: &Path) -> Vec<String> {
    let mut errors = mounts::unmount_below(kubelet);
    for (device, file) in loopdev::on_files_below(data) {
        errors.extend(loopdev::put_away(&device, &file));
    }
    errors
}
