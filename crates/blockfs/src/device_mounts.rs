//! Finds the block device that a mount's file system is on, and the mounts of each device in a mount table.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::DeviceNumber;

use crate::bounded::{self, MAX_KERNEL_VALUE};
use crate::device::Device;
use crate::fstypes::has_anonymous_device;
use crate::mountinfo::{Mount, MountInfo, MountInfoError, MountInfoLine};

/// The mounts in a mount table whose file systems are on block devices, by device. A node's table may have thousands of
/// lines and a pod hundreds of volumes, so the table is read once for all volumes.
#[derive(Debug, Default)]
pub struct DeviceMounts(BTreeMap<DeviceNumber, Vec<DeviceMount>>);

/// A mount of a block device's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMount {
    /// The mount's id, which is statx's `stx_mnt_id`.
    pub id: u32,
    /// The mount point, in the namespace of the table.
    pub mount_point: PathBuf,
}

impl DeviceMounts {
    /// Groups the mounts of a table by device. Each source of a btrfs is opened once, even if it has several mounts.
    pub fn from_table(table: &MountInfo) -> Result<Self, MountInfoError> {
        let mut devices: BTreeMap<DeviceNumber, Vec<DeviceMount>> = BTreeMap::new();
        let mut sources: BTreeMap<OsString, Option<DeviceNumber>> = BTreeMap::new();
        let may_be_on_device = |major, fstype: &[u8]| major != 0 || has_anonymous_device(fstype);
        for mount in table.select(|line| may_be_on_device(line.device.major(), line.fstype))? {
            let device = if mount.device.major() != 0 {
                Some(mount.device)
            } else {
                let known = sources.get(&mount.source).copied();
                known.unwrap_or_else(|| {
                    let device = block_device(&mount);
                    sources.insert(mount.source.clone(), device);
                    device
                })
            };
            if let Some(device) = device {
                devices.entry(device).or_default().push(DeviceMount {
                    id: mount.id,
                    mount_point: mount.mount_point,
                });
            }
        }
        Ok(Self(devices))
    }

    /// Returns the mounts of a device, in the order of the table.
    pub fn on(&self, device: DeviceNumber) -> &[DeviceMount] {
        self.0.get(&device).map_or(&[], Vec::as_slice)
    }
}

/// Returns the id of the mount that a descriptor is on; `None` if /proc doesn't show it. Reads /proc, because statx(2)
/// also queries the file system: an xfs that was shut down returns EIO.
#[must_use]
pub fn mount_id(fd: &OwnedFd) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = bounded::read_to_string(Path::new(&path), MAX_KERNEL_VALUE).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Returns whether a mount may be on a device, judging by its line alone. [`is_on`] decides.
#[must_use]
pub fn may_be_on(line: &MountInfoLine<'_>, device: DeviceNumber) -> bool {
    line.device == device || (line.device.major() == 0 && has_anonymous_device(line.fstype))
}

/// Returns whether a mount's file system is on a device.
#[must_use]
pub fn is_on(mount: &Mount, device: DeviceNumber) -> bool {
    block_device(mount) == Some(device)
}

/// Returns the block device that a mount's file system is on; `None` if it isn't on a block device.
pub(crate) fn block_device(mount: &Mount) -> Option<DeviceNumber> {
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

    #[test]
    fn mounts_are_grouped_by_device() {
        let table = MountInfo::from_bytes(
            b"1 1 0:1 / / rw - tmpfs /dev/loop3 rw\n\
              2 1 7:3 / /b rw - ext4 /dev/loop3 rw\n\
              3 1 7:4 / /a rw - xfs /dev/loop4 rw\n\
              4 1 0:42 / /c rw - btrfs /dev/no-such-device rw\n\
              5 1 7:3 /sub /a\\040b rw - ext4 /dev/another-name rw\n",
        );
        let mounts = DeviceMounts::from_table(&table).unwrap();
        for (device, expected) in [
            ("7:3", &[(2, "/b"), (5, "/a b")][..]),
            ("7:4", &[(3, "/a")]),
            ("0:1", &[]),
            ("0:42", &[]),
            ("7:5", &[]),
        ] {
            let found = mounts.on(device.parse().unwrap()).iter();
            let found: Vec<_> = found
                .map(|mount| (mount.id, mount.mount_point.to_str().unwrap()))
                .collect();
            assert_eq!(found, expected, "{device}");
        }
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        let table = MountInfo::from_bytes(b"1 1 0:1 / /\n");
        let error = DeviceMounts::from_table(&table).unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }

    fn mount(line: &str) -> Mount {
        mountinfo::parse(line.as_bytes()).unwrap().remove(0)
    }

    fn may_be(line: &str, device: DeviceNumber) -> bool {
        let found = mountinfo::select(line.as_bytes(), &|line| may_be_on(line, device));
        !found.unwrap().is_empty()
    }

    #[test]
    fn a_line_shows_whether_its_mount_may_be_on_a_device() {
        let (own, other) = (DeviceNumber::new(7, 3), DeviceNumber::new(7, 4));
        for (line, on_own, on_other) in [
            ("36 35 7:3 / /data rw - ext4 /dev/loop3 rw\n", true, false),
            (
                "36 35 0:42 / /data rw - tmpfs /dev/loop3 rw\n",
                false,
                false,
            ),
            // 0:42 isn't a block device's number, so only the source identifies the device.
            ("36 35 0:42 / /data rw - btrfs /dev/loop3 rw\n", true, true),
        ] {
            assert_eq!([may_be(line, own), may_be(line, other)], [on_own, on_other]);
        }
    }

    #[test]
    fn a_mount_is_on_a_device_by_its_number_and_not_by_its_source() {
        let ext4 = mount("36 35 7:3 / /data rw - ext4 /dev/loop3 rw\n");
        assert!(is_on(&ext4, DeviceNumber::new(7, 3)));
        assert!(!is_on(&ext4, DeviceNumber::new(7, 4)));
        // The source of a tmpfs is any text that was passed to mount(2).
        let tmpfs = mount("36 35 0:42 / /data rw - tmpfs /dev/loop3 rw\n");
        for device in [DeviceNumber::new(7, 3), DeviceNumber::new(0, 42)] {
            assert!(!is_on(&tmpfs, device));
        }
        let btrfs = mount("36 35 0:42 / /data rw - btrfs /dev/no-such-device rw\n");
        assert!(!is_on(&btrfs, DeviceNumber::new(0, 42)));
    }

    #[test]
    fn the_mount_id_of_a_descriptor_is_in_the_mount_table() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let proc = open("/proc", flags, Mode::empty()).unwrap();
        let id = mount_id(&proc).unwrap();
        let mounts = mountinfo::read_own().unwrap();
        let found = mounts.iter().find(|mount| mount.id == id).unwrap();
        assert_eq!(found.mount_point, Path::new("/proc"));
    }
}
