//! Which device a mounted file system is on.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use crate::DeviceNumber;
use crate::bounded::{self, KERNELS_WORD};

use crate::device::Device;
use crate::fstypes::has_anonymous_device;
use crate::mountinfo::{Line, Mount};

/// The id of the mount that a descriptor is on. Not by statx(2), nor the device: both ask the file
/// system, and an xfs that was shut down answers EIO.
#[must_use]
pub fn mount_id(fd: &OwnedFd) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = bounded::read_to_string(Path::new(&path), KERNELS_WORD).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Whether a mount may be of a device's file system, by what its line says at once.
#[must_use]
pub fn may_be_on(line: &Line<'_>, device: DeviceNumber) -> bool {
    line.device == device || (line.device.major() == 0 && has_anonymous_device(line.fstype))
}

/// Whether a mount is of a device's file system.
#[must_use]
pub fn is_on(mount: &Mount, device: DeviceNumber) -> bool {
    device_of(mount) == Some(device)
}

/// Returns the block device that a mount's file system is on, if it is on one.
pub(crate) fn device_of(mount: &Mount) -> Option<DeviceNumber> {
    if mount.device.major() != 0 {
        return Some(mount.device);
    }
    let is_anonymous = has_anonymous_device(mount.fstype.as_encoded_bytes());
    let source = is_anonymous.then(|| Device::open(Path::new(&mount.source)));
    source?.ok().map(|source| source.number())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::mountinfo;

    fn mount(line: &str) -> Mount {
        mountinfo::parse(line.as_bytes()).unwrap().remove(0)
    }

    /// Whether the mount of a line is looked at for a device.
    fn may_be(line: &str, device: DeviceNumber) -> bool {
        let found = mountinfo::select(line.as_bytes(), &|line| may_be_on(line, device));
        !found.unwrap().is_empty()
    }

    #[test]
    fn a_line_says_at_once_which_mounts_may_be_a_devices() {
        let (own, other) = (DeviceNumber::new(7, 3), DeviceNumber::new(7, 4));
        for (line, of_own, of_other) in [
            ("36 35 7:3 / /data rw - ext4 /dev/loop3 rw\n", true, false),
            (
                "36 35 0:42 / /data rw - tmpfs /dev/loop3 rw\n",
                false,
                false,
            ),
            // Its number is no device's: by its source alone.
            ("36 35 0:42 / /data rw - btrfs /dev/loop3 rw\n", true, true),
        ] {
            assert_eq!([may_be(line, own), may_be(line, other)], [of_own, of_other]);
        }
    }

    #[test]
    fn a_mount_is_believed_by_its_device() {
        let ext4 = mount("36 35 7:3 / /data rw - ext4 /dev/loop3 rw\n");
        assert!(is_on(&ext4, DeviceNumber::new(7, 3)));
        assert!(!is_on(&ext4, DeviceNumber::new(7, 4)));
        // A source is what whoever mounts it writes there.
        let tmpfs = mount("36 35 0:42 / /data rw - tmpfs /dev/loop3 rw\n");
        for device in [DeviceNumber::new(7, 3), DeviceNumber::new(0, 42)] {
            assert!(!is_on(&tmpfs, device));
        }
        let btrfs = mount("36 35 0:42 / /data rw - btrfs /dev/there-is-none rw\n");
        assert!(!is_on(&btrfs, DeviceNumber::new(0, 42)));
    }

    #[test]
    fn the_mount_of_a_descriptor_is_one_of_ours() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let proc = open("/proc", flags, Mode::empty()).unwrap();
        let id = mount_id(&proc).unwrap();
        let mounts = mountinfo::read_own().unwrap();
        let found = mounts.iter().find(|mount| mount.id == id).unwrap();
        assert_eq!(found.mount_point, Path::new("/proc"));
    }
}
