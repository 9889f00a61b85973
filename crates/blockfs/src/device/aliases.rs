//! Which devices are, in the end, the same bytes (docs/protocol.md, "A second pod on the device").

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::bounded::{self, KERNELS_WORD};
use rustix::fs::{major, minor};

use super::{DeviceError, DeviceNumber, DiskSeq};
use crate::sys::loops::{LoopFile, LoopStatus, encoded};

/// One name for some bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A block device.
    Device(DeviceNumber),
    /// What a loop device shows: a file from an offset on. Its length isn't compared.
    File {
        /// The device of its file system, as the kernel has it of a loop device's file.
        device: u64,
        /// Its inode.
        inode: u64,
        /// In bytes.
        offset: u64,
    },
    /// The same of a loop device on another device.
    Part {
        /// That device.
        disk: DeviceNumber,
        /// In bytes.
        offset: u64,
    },
    /// The same where nobody can tell which file it is, nor look at it from here: its path as the
    /// kernel tells it.
    FileAt {
        /// The path.
        path: PathBuf,
        /// In bytes.
        offset: u64,
    },
}

impl Identity {
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

    /// What it is a part of, of this kind.
    fn disk(&self) -> Option<DeviceNumber> {
        match self {
            Self::Part { disk, .. } => Some(*disk),
            _ => None,
        }
    }
}

/// What a device is, and what it lies on.
///
/// A device mapper or md device lies on its slaves, a partition on its disk, a loop device on its
/// device, or it *is* its file, from its offset on. That is also what the kernel's exclusive claims
/// say, but of loop devices: a disk and its partition exclude each other, two partitions (two logical
/// volumes) don't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aliases {
    /// The device, and the file it shows if it is a loop device.
    pub own: BTreeSet<Identity>,
    /// Everything below it, down to the disks.
    pub below: BTreeSet<Identity>,
}

impl Aliases {
    /// Reads them from a sysfs that is mounted at `sysfs`; `asked` is what a loop device itself says.
    pub(super) fn read(
        sysfs: &Path,
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
            names.insert(Identity::Device(device));
            let lower = match shown(sysfs, &mut asked, device)? {
                // Of a loop device that is all: it is no partition, and has no slaves.
                Some(shown) => {
                    let disk = shown.disk();
                    names.insert(shown);
                    Vec::from_iter(disk)
                }
                None => directly_below(sysfs, device)?,
            };
            rest.extend(lower.into_iter().filter(|lower| visited.insert(*lower)));
        }
        Ok(Self { own, below })
    }

    /// Of a loop device on a file, by what it said: that is all there is to know.
    pub(super) fn of_shown(number: DeviceNumber, status: &LoopStatus) -> Option<Self> {
        let shown = Identity::of(status.file, status.offset);
        shown.disk().is_none().then(|| Self {
            own: BTreeSet::from([Identity::Device(number), shown]),
            below: BTreeSet::new(),
        })
    }

    /// Whether a device is this one, or one that it lies on: those exclude each other by the
    /// kernel's claims.
    pub(super) fn are_of(&self, number: DeviceNumber) -> bool {
        let device = Identity::Device(number);
        self.own.contains(&device) || self.below.contains(&device)
    }

    /// Returns true if the device is a loop device, or lies on one.
    pub(super) fn has_loop_device(&self) -> bool {
        let mut all = self.own.iter().chain(&self.below);
        all.any(|it| matches!(it, Identity::Device(number) if number.major() == LOOP))
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

/// The major number of loop devices, and of some partitions on them (Documentation/admin-guide/devices.txt
/// of the kernel).
const LOOP: u32 = 7;

/// Of the kernel's list of disks: a node may have thousands.
const LIST: u64 = 4 << 20;

/// The loop devices that show something, by the kernel's list of disks that have a size. (sysfs would have to
/// be asked about each that there is.)
pub(super) fn loops() -> Result<Vec<DeviceNumber>, DeviceError> {
    let file = Path::new("/proc/partitions");
    let list = bounded::read(file, LIST).map_err(|source| {
        let file = file.to_owned();
        DeviceError::Unlisted { file, source }
    })?;
    Ok(loops_of(&String::from_utf8_lossy(&list)))
}

/// Of lines of `major minor #blocks name`.
fn loops_of(list: &str) -> Vec<DeviceNumber> {
    let device = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (major, minor) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_loop = major == LOOP && is_loops(fields.nth(1)?);
        is_loop.then(|| DeviceNumber::new(major, minor))
    };
    list.lines().filter_map(device).collect()
}

/// Whether it is a loop device's name, and not a partition's on one.
fn is_loops(name: &str) -> bool {
    let number = name.strip_prefix("loop");
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Those of the loop devices whose file has this name, by what the kernel says of its path. In the path of another
/// mount namespace the name is the same; ` (deleted)` may be after it.
pub(super) fn named(
    sysfs: &Path,
    loops: Vec<DeviceNumber>,
    name: &OsStr,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let mut named = Vec::new();
    for device in loops {
        let path = match backing_file(sysfs, device) {
            Ok(path) => path,
            // A path that is longer than the kernel tells is longer than the name's.
            Err(DeviceError::Sysfs { source, .. })
                if source.raw_os_error() == Some(libc::ENAMETOOLONG) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let path = path.as_ref().and_then(|path| path.file_name());
        let bytes = path.map_or(&[][..], OsStr::as_bytes);
        let left = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
        if bytes == name.as_bytes() || left == name.as_bytes() {
            named.push(device);
        }
    }
    Ok(named)
}

/// `/sys/dev/block/<n>/loop/backing_file`; `None` when it shows nothing. Unlike in mountinfo the path
/// isn't escaped; the kernel adds one newline.
pub(super) fn backing_file(
    sysfs: &Path,
    number: DeviceNumber,
) -> Result<Option<PathBuf>, DeviceError> {
    let file = directory(sysfs, number).join("loop/backing_file");
    let path = optional(number, &file)?;
    Ok(path.map(|path| {
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        PathBuf::from(OsStr::from_bytes(path))
    }))
}

/// Adds the loop devices among a device and those below it, as far as that can be told, with their names.
pub(super) fn loops_among(
    sysfs: &Path,
    number: DeviceNumber,
    loops: &mut BTreeMap<DeviceNumber, OsString>,
) {
    let mut rest = vec![number];
    let mut visited = BTreeSet::from([number]);
    while let Some(device) = rest.pop() {
        if let Some(name) = loop_name(sysfs, device) {
            loops.insert(device, name);
            continue;
        }
        let lower = directly_below(sysfs, device).unwrap_or_default();
        rest.extend(lower.into_iter().filter(|lower| visited.insert(*lower)));
    }
}

/// A loop device's name below `/dev`, which is that of the directory that sysfs's link leads to; `None` of any
/// other device. A machine may have thousands, and `uevent` takes longer.
pub(super) fn loop_name(sysfs: &Path, number: DeviceNumber) -> Option<OsString> {
    if number.major() != LOOP {
        return None;
    }
    let link = fs::read_link(directory(sysfs, number)).ok()?;
    let name = link.file_name()?;
    name.to_str().is_some_and(is_loops).then(|| name.to_owned())
}

/// The device's name below `/dev`, from `/sys/dev/block/<n>/uevent`; `None` when there is no such
/// device.
pub(super) fn name(sysfs: &Path, number: DeviceNumber) -> Result<Option<PathBuf>, DeviceError> {
    let Some(uevent) = optional(number, &directory(sysfs, number).join("uevent"))? else {
        // Where no device is there it can't be told that this one is gone.
        let all = sysfs.join("dev/block");
        let listed = fs::read_dir(&all).map(drop);
        return listed
            .map(|()| None)
            .map_err(|error| sysfs_error(number, &all, error));
    };
    let mut lines = uevent.split(|byte| *byte == b'\n');
    let name = lines.find_map(|line| line.strip_prefix(b"DEVNAME="));
    Ok(name.map(|name| PathBuf::from(OsStr::from_bytes(name))))
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

/// `/sys/dev/block/<n>/diskseq`, which a partition doesn't have.
///
/// Growth leaves it as it is. Device mapper's is its device's as long as that lives, also where a new
/// table is loaded (`lvextend`, a path of multipath's that comes or goes): that sets the disk's size
/// (`__bind` in drivers/md/dm.c). Anew are counted those with a new medium: loop and nbd say so
/// themselves (`disk_force_media_change`), removable disks when they are asked (block/disk-events.c).
pub(super) fn disk_seq(sysfs: &Path, number: DeviceNumber) -> Result<Option<DiskSeq>, DeviceError> {
    let directory = directory(sysfs, number);
    let mut file = directory.join("diskseq");
    let mut contents = optional(number, &file)?;
    if contents.is_none() && directory.join("partition").exists() {
        file = directory.join("..").join("diskseq");
        contents = optional(number, &file)?;
    }
    contents
        .map(|contents| parsed(number, &file, &contents))
        .transpose()
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

/// What a loop device shows; `None` of another device, and where it shows nothing (any more).
fn shown(
    sysfs: &Path,
    asked: impl FnOnce(DeviceNumber) -> Result<Option<LoopStatus>, DeviceError>,
    number: DeviceNumber,
) -> Result<Option<Identity>, DeviceError> {
    if loop_name(sysfs, number).is_none() {
        return Ok(None);
    }
    if let Some(LoopStatus { file, offset, .. }) = asked(number)? {
        return Ok(Some(Identity::of(file, offset)));
    }
    let Some(path) = backing_file(sysfs, number)? else {
        return Ok(None);
    };
    let file = directory(sysfs, number).join("loop/offset");
    let Some(offset) = optional(number, &file)? else {
        return Ok(None);
    };
    let offset = parsed(number, &file, &offset)?;
    Ok(Some(match file_at(&path) {
        Some(file) => Identity::of(file, offset),
        None => Identity::FileAt { path, offset },
    }))
}

/// The file at a path of this mount namespace, where the device itself can't be asked. The path is of
/// whoever attached it.
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
    parsed(number, file, &required(number, file)?)
}

fn decimal(number: DeviceNumber, file: &Path) -> Result<u64, DeviceError> {
    parsed(number, file, &required(number, file)?)
}

fn parsed<T: FromStr>(
    number: DeviceNumber,
    file: &Path,
    contents: &[u8],
) -> Result<T, DeviceError> {
    let text = String::from_utf8_lossy(contents);
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
