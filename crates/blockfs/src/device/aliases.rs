//! Aliases of a block device: other devices with the same data (docs/protocol.md, "A second pod on the device").

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::{DeviceError, DeviceNumber, sysfs};
use crate::sys::loops::{LoopFile, LoopStatus, encode_device};

/// An identity of the data on a device. Devices with a common identity have the same data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceIdentity {
    /// A block device, by its number.
    Device(DeviceNumber),
    /// The backing file of a loop device, from an offset on. Its length isn't compared.
    File {
        /// The device of the file's file system, in the kernel's encoding.
        device: u64,
        /// The file's inode number.
        inode: u64,
        /// The offset in bytes.
        offset: u64,
    },
    /// The device that a loop device is attached to, from an offset on.
    Part {
        /// The number of the device below.
        disk: DeviceNumber,
        /// The offset in bytes.
        offset: u64,
    },
    /// The backing file of a loop device by its path in sysfs, if the device can't report the inode and this process
    /// can't look the path up.
    FileAt {
        /// The path in sysfs, which is that of the process that attached the file.
        path: PathBuf,
        /// The offset in bytes.
        offset: u64,
    },
}

impl DeviceIdentity {
    fn from_loop_file(file: LoopFile, offset: u64) -> Self {
        let LoopFile {
            device,
            inode,
            disk,
        } = file;
        match disk {
            Some(disk) => Self::Part { disk, offset },
            None => Self::File {
                device,
                inode,
                offset,
            },
        }
    }

    /// Returns the device that this is a part of.
    fn disk(&self) -> Option<DeviceNumber> {
        match self {
            Self::Part { disk, .. } => Some(*disk),
            _ => None,
        }
    }
}

/// The identities of a device, and of the devices that it lies on.
///
/// A device-mapper or md device lies on its slaves, a partition on its disk, and a loop device on the device that it is
/// attached to. A loop device that is attached to a file *is* that file, from its offset on.
///
/// Except for loop devices, conflicts are the same as with the kernel's exclusive claims: a disk and its partition
/// exclude each other, while two partitions or two logical volumes don't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aliases {
    /// The device itself, and its file if it is a loop device.
    pub own: BTreeSet<DeviceIdentity>,
    /// Everything below the device, down to the disks.
    pub below: BTreeSet<DeviceIdentity>,
}

impl Aliases {
    /// Reads the aliases of a device from the sysfs at `root`. `loop_status` returns what a loop device reports itself.
    pub(super) fn read(
        root: &Path,
        mut loop_status: impl FnMut(DeviceNumber) -> Result<Option<LoopStatus>, DeviceError>,
        number: DeviceNumber,
    ) -> Result<Self, DeviceError> {
        let (mut own, mut below) = (BTreeSet::new(), BTreeSet::new());
        let mut visited = BTreeSet::from([number]);
        let mut rest = vec![number];
        while let Some(device) = rest.pop() {
            let identities = if device == number {
                &mut own
            } else {
                &mut below
            };
            identities.insert(DeviceIdentity::Device(device));
            let lower = match backing_identity(root, &mut loop_status, device)? {
                // A loop device has nothing else below it: it isn't a partition, and has no slaves.
                Some(backing) => {
                    let disk = backing.disk();
                    identities.insert(backing);
                    Vec::from_iter(disk)
                }
                None => sysfs::directly_below(root, device)?,
            };
            rest.extend(lower.into_iter().filter(|lower| visited.insert(*lower)));
        }
        Ok(Self { own, below })
    }

    /// Returns the aliases of a loop device by its status; `None` if it is attached to a device instead of a file.
    pub(super) fn from_loop_status(number: DeviceNumber, status: &LoopStatus) -> Option<Self> {
        let backing = DeviceIdentity::from_loop_file(status.file, status.offset);
        backing.disk().is_none().then(|| Self {
            own: BTreeSet::from([DeviceIdentity::Device(number), backing]),
            below: BTreeSet::new(),
        })
    }

    /// Returns whether the device with this number is this device, or one that it lies on. The kernel's exclusive
    /// claims cover these.
    pub(super) fn include(&self, number: DeviceNumber) -> bool {
        let device = DeviceIdentity::Device(number);
        self.own.contains(&device) || self.below.contains(&device)
    }

    /// Returns whether the device is a loop device, or lies on one.
    pub(super) fn has_loop_device(&self) -> bool {
        let mut all = self.own.iter().chain(&self.below);
        all.any(|identity| matches!(identity, DeviceIdentity::Device(number) if number.major() == sysfs::LOOP_MAJOR))
    }

    /// Returns whether the two devices must not be written to at the same time, because they are the same or one lies
    /// on the other. Two devices that merely lie on the same third one, such as logical volumes of one physical volume,
    /// don't conflict.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        !self.own.is_disjoint(&other.own)
            || !self.own.is_disjoint(&other.below)
            || !self.below.is_disjoint(&other.own)
    }
}

/// Returns the identity of what a loop device is attached to; `None` for another device, and for a loop device that
/// isn't attached.
fn backing_identity(
    root: &Path,
    loop_status: impl FnOnce(DeviceNumber) -> Result<Option<LoopStatus>, DeviceError>,
    number: DeviceNumber,
) -> Result<Option<DeviceIdentity>, DeviceError> {
    if sysfs::loop_name(root, number).is_none() {
        return Ok(None);
    }
    if let Some(LoopStatus { file, offset, .. }) = loop_status(number)? {
        return Ok(Some(DeviceIdentity::from_loop_file(file, offset)));
    }
    let Some(path) = sysfs::backing_file(root, number)? else {
        return Ok(None);
    };
    let Some(offset) = sysfs::loop_offset(root, number)? else {
        return Ok(None);
    };
    Ok(Some(match look_up_file(&path) {
        Some(file) => DeviceIdentity::from_loop_file(file, offset),
        None => DeviceIdentity::FileAt { path, offset },
    }))
}

/// Looks up the path of a backing file in this mount namespace. It may lead to another file here, because the path is
/// that of the process that attached the file.
fn look_up_file(path: &Path) -> Option<LoopFile> {
    let file = fs::metadata(path).ok()?;
    let number = |device| DeviceNumber::new(major(device), minor(device));
    Some(LoopFile {
        device: encode_device(number(file.dev())),
        inode: file.ino(),
        disk: file
            .file_type()
            .is_block_device()
            .then(|| number(file.rdev())),
    })
}

#[cfg(test)]
mod tests;
