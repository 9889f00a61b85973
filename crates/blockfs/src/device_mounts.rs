//! The mounts of a namespace by the block device that they are of.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::DeviceNumber;

use crate::fstypes::has_anonymous_device;
use crate::mountinfo::{MountInfoError, Table};
use crate::origin::device_of;

/// The mounts of block devices in a mount table. A node's table has thousands of lines and a pod may have hundreds of
/// volumes, so the table is read once for all of them.
#[derive(Debug, Default)]
pub struct DeviceMounts(BTreeMap<DeviceNumber, Vec<DeviceMount>>);

/// A mount of a block device's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMount {
    /// The mount's id; statx's `stx_mnt_id`.
    pub id: u32,
    /// Where it is mounted, as its namespace has it.
    pub mount_point: PathBuf,
}

impl DeviceMounts {
    /// Sorts the mounts of a table by their devices. The source of a btrfs is opened once, however many mounts
    /// there are of it.
    pub fn of(table: &Table) -> Result<Self, MountInfoError> {
        let mut devices: BTreeMap<DeviceNumber, Vec<DeviceMount>> = BTreeMap::new();
        let mut sources: BTreeMap<OsString, Option<DeviceNumber>> = BTreeMap::new();
        let of_devices = |major, fstype: &[u8]| major != 0 || has_anonymous_device(fstype);
        for mount in table.select(|line| of_devices(line.device.major(), line.fstype))? {
            let device = if mount.device.major() != 0 {
                Some(mount.device)
            } else {
                let known = sources.get(&mount.source).copied();
                known.unwrap_or_else(|| {
                    let device = device_of(&mount);
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

    /// Returns a device's mounts, in the order of the table.
    pub fn on(&self, device: DeviceNumber) -> &[DeviceMount] {
        self.0.get(&device).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_sorted_by_device_in_one_pass() {
        let table = Table::of_bytes(
            b"1 1 0:1 / / rw - tmpfs /dev/loop3 rw\n\
              2 1 7:3 / /b rw - ext4 /dev/loop3 rw\n\
              3 1 7:4 / /a rw - xfs /dev/loop4 rw\n\
              4 1 0:42 / /c rw - btrfs /dev/there-is-none rw\n\
              5 1 7:3 /sub /a\\040b rw - ext4 /dev/another-name rw\n",
        );
        let mounts = DeviceMounts::of(&table).unwrap();
        for (device, expected) in [
            ("7:3", &[(2, "/b"), (5, "/a b")][..]),
            ("7:4", &[(3, "/a")]),
            ("0:1", &[]),
            ("0:42", &[]),
            ("7:5", &[]),
        ] {
            let found = mounts.on(device.parse().unwrap()).iter();
            let found: Vec<_> = found
                .map(|it| (it.id, it.mount_point.to_str().unwrap()))
                .collect();
            assert_eq!(found, expected, "{device}");
        }
    }

    #[test]
    fn a_line_that_is_no_mount_is_an_error() {
        let table = Table::of_bytes(b"1 1 0:1 / /\n");
        let error = DeviceMounts::of(&table).unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
