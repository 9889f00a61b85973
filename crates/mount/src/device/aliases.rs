//! Which devices are, in the end, the same bytes (docs/protocol.md, "A second pod on the device").

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crust_state::bounded::{self, KERNELS_WORD};

use super::{DeviceError, DeviceNumber};

/// One name for some bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A block device.
    Device(DeviceNumber),
    /// What a loop device shows: a file from an offset on. Its length isn't compared.
    File {
        /// `st_dev` of the file.
        device: u64,
        /// `st_ino` of the file.
        inode: u64,
        /// In bytes.
        offset: u64,
    },
    /// The same where the file can't be looked at from here (deleted, or of another mount
    /// namespace): its path as the kernel tells it.
    FileAt {
        /// The path.
        path: PathBuf,
        /// In bytes.
        offset: u64,
    },
}

/// What a device is, and what it lies on.
///
/// A device mapper or md device lies on its slaves, a partition on its disk, a loop device *is* its
/// file from its offset on. That is also what the kernel's exclusive claims say: a disk and its
/// partition exclude each other, two partitions (two logical volumes) don't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aliases {
    /// The device, and the file it shows if it is a loop device.
    pub own: BTreeSet<Identity>,
    /// Everything below it, down to the disks.
    pub below: BTreeSet<Identity>,
}

impl Aliases {
    /// Reads them from a sysfs that is mounted at `sysfs`.
    pub fn read(sysfs: &Path, number: DeviceNumber) -> Result<Self, DeviceError> {
        let own = identities(sysfs, number)?;
        let mut below = BTreeSet::new();
        let mut visited = BTreeSet::from([number]);
        let mut rest = vec![number];
        while let Some(upper) = rest.pop() {
            for lower in directly_below(sysfs, upper)? {
                if visited.insert(lower) {
                    below.extend(identities(sysfs, lower)?);
                    rest.push(lower);
                }
            }
        }
        Ok(Self { own, below })
    }

    /// Whether there is a loop device among them.
    pub(super) fn show_a_file(&self) -> bool {
        let mut all = self.own.iter().chain(&self.below);
        all.any(|identity| !matches!(identity, Identity::Device(_)))
    }

    /// Whether a device is this one, or one that it lies on: those exclude each other by the
    /// kernel's claims.
    pub(super) fn are_of(&self, number: DeviceNumber) -> bool {
        let device = Identity::Device(number);
        self.own.contains(&device) || self.below.contains(&device)
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

/// Every block device.
pub(super) fn all(sysfs: &Path) -> Result<Vec<DeviceNumber>, DeviceError> {
    let directory = sysfs.join("dev/block");
    let listing = fs::read_dir(&directory)
        .map_err(|error| sysfs_error(DeviceNumber::new(0, 0), &directory, error))?;
    let names = listing.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}

/// The device's name below `/dev`, from `/sys/dev/block/<n>/uevent`; `None` when there is no such
/// device.
pub(super) fn name(sysfs: &Path, number: DeviceNumber) -> Result<Option<PathBuf>, DeviceError> {
    let Some(uevent) = optional(number, &directory(sysfs, number).join("uevent"))? else {
        return Ok(None);
    };
    let mut lines = uevent.split(|byte| *byte == b'\n');
    let name = lines.find_map(|line| line.strip_prefix(b"DEVNAME="));
    Ok(name.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name))))
}

/// `/sys/dev/block/<n>/ro`.
pub(super) fn is_read_only(sysfs: &Path, number: DeviceNumber) -> Result<bool, DeviceError> {
    Ok(required(number, &directory(sysfs, number).join("ro"))?.trim_ascii() == b"1")
}

/// `/sys/dev/block/<n>/size`, in units of 512 bytes whatever the device's own are; here in bytes.
pub(super) fn size(sysfs: &Path, number: DeviceNumber) -> Result<u64, DeviceError> {
    let sectors = decimal(number, &directory(sysfs, number).join("size"))?;
    Ok(sectors.saturating_mul(512))
}

/// `/sys/dev/block/<n>/holders`, which a partition has too.
pub(super) fn has_holders(sysfs: &Path, number: DeviceNumber) -> Result<bool, DeviceError> {
    let holders = directory(sysfs, number).join("holders");
    match fs::read_dir(&holders) {
        Ok(mut listing) => Ok(listing.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(sysfs_error(number, &holders, error)),
    }
}

/// Every block device has `/sys/dev/block/<n>`, a link to its directory.
fn directory(sysfs: &Path, number: DeviceNumber) -> PathBuf {
    sysfs.join("dev/block").join(number.to_string())
}

fn identities(sysfs: &Path, number: DeviceNumber) -> Result<BTreeSet<Identity>, DeviceError> {
    let mut identities = BTreeSet::from([Identity::Device(number)]);
    let looped = directory(sysfs, number).join("loop");
    if let Some(path) = optional(number, &looped.join("backing_file"))? {
        // Unlike in mountinfo the path isn't escaped; the kernel adds one newline.
        let path = Path::new(std::ffi::OsStr::from_bytes(
            path.strip_suffix(b"\n").unwrap_or(&path),
        ));
        let offset = decimal(number, &looped.join("offset"))?;
        identities.insert(backing_file(path, offset));
    }
    Ok(identities)
}

fn backing_file(path: &Path, offset: u64) -> Identity {
    match fs::metadata(path) {
        Ok(file) => Identity::File {
            device: file.dev(),
            inode: file.ino(),
            offset,
        },
        Err(_) => Identity::FileAt {
            path: path.to_owned(),
            offset,
        },
    }
}

fn directly_below(sysfs: &Path, number: DeviceNumber) -> Result<Vec<DeviceNumber>, DeviceError> {
    let directory = directory(sysfs, number);
    // First of all, since every device has `dev`: what isn't there at all isn't a device.
    required(number, &directory.join("dev"))?;
    let mut below = Vec::new();
    if optional(number, &directory.join("partition"))?.is_some() {
        // A partition's directory is in its disk's.
        below.push(device_number(number, &directory.join("..").join("dev"))?);
    }
    let slaves = directory.join("slaves");
    let listing = match fs::read_dir(&slaves) {
        Ok(listing) => listing,
        // Partitions have none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(below),
        Err(error) => return Err(sysfs_error(number, &slaves, error)),
    };
    for slave in listing {
        let slave = slave.map_err(|error| sysfs_error(number, &slaves, error))?;
        below.push(device_number(number, &slave.path().join("dev"))?);
    }
    Ok(below)
}

fn device_number(number: DeviceNumber, file: &Path) -> Result<DeviceNumber, DeviceError> {
    parsed(number, file)
}

fn decimal(number: DeviceNumber, file: &Path) -> Result<u64, DeviceError> {
    parsed(number, file)
}

fn parsed<T: std::str::FromStr>(number: DeviceNumber, file: &Path) -> Result<T, DeviceError> {
    let contents = required(number, file)?;
    let text = String::from_utf8_lossy(&contents);
    text.trim().parse().map_err(|_| {
        let error = io::Error::new(io::ErrorKind::InvalidData, format!("unexpected {text:?}"));
        sysfs_error(number, file, error)
    })
}

fn required(number: DeviceNumber, file: &Path) -> Result<Vec<u8>, DeviceError> {
    bounded::read(file, KERNELS_WORD).map_err(|error| sysfs_error(number, file, error))
}

fn optional(number: DeviceNumber, file: &Path) -> Result<Option<Vec<u8>>, DeviceError> {
    match required(number, file) {
        Ok(contents) => Ok(Some(contents)),
        // ENXIO, ENODEV: the loop device was detached between our two looks.
        Err(DeviceError::Sysfs { source, .. })
            if source.kind() == io::ErrorKind::NotFound
                || matches!(source.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn sysfs_error(number: DeviceNumber, file: &Path, source: io::Error) -> DeviceError {
    DeviceError::Sysfs {
        number,
        file: file.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
