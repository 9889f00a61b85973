//! What a killed driver leaves on the machine.

use std::path::Path;

use nix::mount::{MntFlags, umount2};

use crate::{host, loopdev};

/// Takes off what is mounted in kubelet's directory, and detaches the loop devices on files of the data
/// directory.
pub(super) fn put_away(kubelet: &Path, data: &Path) -> Vec<String> {
    let mut errors = Vec::new();
    for mount in host::mounts_below(kubelet).iter().rev() {
        let off = umount2(mount, MntFlags::UMOUNT_NOFOLLOW)
            .or_else(|_| umount2(mount, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH));
        errors.extend(
            off.err()
                .map(|error| format!("umount {}: {error}", mount.display())),
        );
    }
    for (device, file) in loopdev::on_files_below(data) {
        errors.extend(loopdev::put_away(&device, &file));
    }
    errors
}
