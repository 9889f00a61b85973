//! Aliases of a block device: other devices with the same bytes (docs/protocol.md, "A second pod on the device").

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::{DeviceError, DeviceNumber, sysfs};
use crate::sys::loops::{LoopFile, LoopStatus, encoded};

/// A name of the bytes of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceIdentity {
    /// A block device.
    Device(DeviceNumber),
    /// The file of a loop device, from an offset on. Its length isn't compared.
    File {
        /// The device of its file system, as the kernel has it of a loop device's file.
        device: u64,
        /// Its inode.
        inode: u64,
        /// The offset in bytes.
        offset: u64,
    },
    /// The device of a loop device, from an offset on.
    Part {
        /// The device.
        disk: DeviceNumber,
        /// The offset in bytes.
        offset: u64,
    },
    /// The file of a loop device that doesn't tell its inode, and that this process can't open: the path that the
    /// kernel shows.
    FileAt {
        /// The path.
        path: PathBuf,
        /// The offset in bytes.
        offset: u64,
    },
}

impl DeviceIdentity {
    fn of(file: LoopFile, offset: u64) -> Self {
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

    /// Returns the device that it is a part of.
    fn disk(&self) -> Option<DeviceNumber> {
        match self {
            Self::Part { disk, .. } => Some(*disk),
            _ => None,
        }
    }
}

/// The identities of a device, and of the devices that it lies on.
///
/// A device mapper or md device lies on its slaves, a partition on its disk, a loop device on its
/// device, or it *is* its file, from its offset on. That is also what the kernel's exclusive claims
/// say, but of loop devices: a disk and its partition exclude each other, two partitions (two logical
/// volumes) don't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aliases {
    /// The device, and its file if it is a loop device.
    pub own: BTreeSet<DeviceIdentity>,
    /// Everything below it, down to the disks.
    pub below: BTreeSet<DeviceIdentity>,
}

impl Aliases {
    /// Reads them from a sysfs that is mounted at `root`; `asked` returns what a loop device itself says.
    pub(super) fn read(
        root: &Path,
        mut asked: impl FnMut(DeviceNumber) -> Result<Option<LoopStatus>, DeviceError>,
        number: DeviceNumber,
    ) -> Result<Self, DeviceError> {
        let (mut own, mut below) = (BTreeSet::new(), BTreeSet::new());
        let mut visited = BTreeSet::from([number]);
        let mut rest = vec![number];
        while let Some(device) = rest.pop() {
            let names = if device == number {
                &mut own
            } else {
                &mut below
            };
            names.insert(DeviceIdentity::Device(device));
            let lower = match shown(root, &mut asked, device)? {
                // A loop device has nothing else below it: it is no partition, and has no slaves.
                Some(shown) => {
                    let disk = shown.disk();
                    names.insert(shown);
                    Vec::from_iter(disk)
                }
                None => sysfs::directly_below(root, device)?,
            };
            rest.extend(lower.into_iter().filter(|lower| visited.insert(*lower)));
        }
        Ok(Self { own, below })
    }

    /// Returns the aliases of a loop device on a file by its status; `None` if it is on a device.
    pub(super) fn of_shown(number: DeviceNumber, status: &LoopStatus) -> Option<Self> {
        let shown = DeviceIdentity::of(status.file, status.offset);
        shown.disk().is_none().then(|| Self {
            own: BTreeSet::from([DeviceIdentity::Device(number), shown]),
            below: BTreeSet::new(),
        })
    }

    /// Whether a device is this one, or one that it lies on. Those exclude each other by the kernel's claims.
    pub(super) fn are_of(&self, number: DeviceNumber) -> bool {
        let device = DeviceIdentity::Device(number);
        self.own.contains(&device) || self.below.contains(&device)
    }

    /// Returns true if the device is a loop device, or lies on one.
    pub(super) fn has_loop_device(&self) -> bool {
        let mut all = self.own.iter().chain(&self.below);
        all.any(|it| matches!(it, DeviceIdentity::Device(number) if number.major() == sysfs::LOOP))
    }

    /// Whether the two must not be written to at once: they are the same, or one lies on the other.
    /// Two that merely lie on the same third one (logical volumes of a physical volume) may.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        !self.own.is_disjoint(&other.own)
            || !self.own.is_disjoint(&other.below)
            || !self.below.is_disjoint(&other.own)
    }
}

/// Returns the identity of a loop device's file; `None` for another device, and for a loop device without a file.
fn shown(
    root: &Path,
    asked: impl FnOnce(DeviceNumber) -> Result<Option<LoopStatus>, DeviceError>,
    number: DeviceNumber,
) -> Result<Option<DeviceIdentity>, DeviceError> {
    if sysfs::loop_name(root, number).is_none() {
        return Ok(None);
    }
    if let Some(LoopStatus { file, offset, .. }) = asked(number)? {
        return Ok(Some(DeviceIdentity::of(file, offset)));
    }
    let Some(path) = sysfs::backing_file(root, number)? else {
        return Ok(None);
    };
    let Some(offset) = sysfs::loop_offset(root, number)? else {
        return Ok(None);
    };
    Ok(Some(match file_at(&path) {
        Some(file) => DeviceIdentity::of(file, offset),
        None => DeviceIdentity::FileAt { path, offset },
    }))
}

/// Returns the file at a path of this mount namespace, for a device that can't be asked. The path is that of the
/// process that attached the file.
fn file_at(path: &Path) -> Option<LoopFile> {
    let file = fs::metadata(path).ok()?;
    let number = |device| DeviceNumber::new(major(device), minor(device));
    Some(LoopFile {
        device: encoded(number(file.dev())),
        inode: file.ino(),
        disk: file
            .file_type()
            .is_block_device()
            .then(|| number(file.rdev())),
    })
}

#[cfg(test)]
mod tests;
