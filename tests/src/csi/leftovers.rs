//! Removes what a killed driver leaves on the machine.

use std::path::Path;

use crate::{loopdev, mounts};

/// Unmounts everything in kubelet's directory, and detaches the loop devices on files of the data directory.
pub(super) fn remove_leftovers(kubelet: &Path, data: &Path) -> Vec<String> {
    let mut errors = mounts::unmount_below(kubelet);
    for (device, file) in loopdev::on_files_below(data) {
        errors.extend(loopdev::detach_and_wait(&device, &file));
    }
    errors
}
