//! Attributes of block devices in sysfs, and the list of loop devices. Each function takes the directory where sysfs is
//! mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{DeviceError, DeviceNumber, DiskSeq};
use crate::bounded::{self, KERNELS_WORD};

/// The major number of loop devices, and of some partitions on them (Documentation/admin-guide/devices.txt
/// of the kernel).
pub(super) const LOOP: u32 = 7;

/// The size limit of the kernel's list of disks in bytes: a node may have thousands.
const LIST: u64 = 4 << 20;

/// Returns the loop devices that have a file, by the kernel's list of disks that have a size. (In sysfs each loop
/// device would have to be looked up.)
pub(super) fn loops() -> Result<Vec<DeviceNumber>, DeviceError> {
    let file = Path::new("/proc/partitions");
    let list = bounded::read(file, LIST).map_err(|source| {
        let file = file.to_owned();
        DeviceError::Unlisted { file, source }
    })?;
    Ok(loops_of(&String::from_utf8_lossy(&list)))
}

/// Parses lines of `major minor #blocks name`.
pub(super) fn loops_of(list: &str) -> Vec<DeviceNumber> {
    let device = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (major, minor) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_loop = major == LOOP && is_loops(fields.nth(1)?);
        is_loop.then(|| DeviceNumber::new(major, minor))
    };
    list.lines().filter_map(device).collect()
}

/// Whether it is the name of a loop device, and not of a partition on one.
fn is_loops(name: &str) -> bool {
    let number = name.strip_prefix("loop");
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns those of the loop devices whose file has this name, by the path that the kernel shows. In the path of
/// another mount namespace the name is the same; ` (deleted)` may be after it.
pub(super) fn named(
    root: &Path,
    loops: Vec<DeviceNumber>,
    name: &OsStr,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let mut named = Vec::new();
    for device in loops {
        let path = match backing_file(root, device) {
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

/// Reads `/sys/dev/block/<n>/loop/backing_file`; `None` if the device has no file. Unlike in mountinfo the path isn't
/// escaped; the kernel adds one newline.
pub(super) fn backing_file(
    root: &Path,
    number: DeviceNumber,
) -> Result<Option<PathBuf>, DeviceError> {
    let file = directory(root, number).join("loop/backing_file");
    let path = optional(number, &file)?;
    Ok(path.map(|path| {
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        PathBuf::from(OsStr::from_bytes(path))
    }))
}

/// Reads `/sys/dev/block/<n>/loop/offset` in bytes; `None` if the device has no file.
pub(super) fn loop_offset(root: &Path, number: DeviceNumber) -> Result<Option<u64>, DeviceError> {
    let file = directory(root, number).join("loop/offset");
    let Some(offset) = optional(number, &file)? else {
        return Ok(None);
    };
    parsed(number, &file, &offset).map(Some)
}

/// Adds the loop devices among a device and those below it, with their names. What can't be read is left out.
pub(super) fn loops_among(
    root: &Path,
    number: DeviceNumber,
    loops: &mut BTreeMap<DeviceNumber, OsString>,
) {
    let mut rest = vec![number];
    let mut visited = BTreeSet::from([number]);
    while let Some(device) = rest.pop() {
        if let Some(name) = loop_name(root, device) {
            loops.insert(device, name);
            continue;
        }
        let lower = directly_below(root, device).unwrap_or_default();
        rest.extend(lower.into_iter().filter(|lower| visited.insert(*lower)));
    }
}

/// Returns a loop device's name below `/dev`, which is that of the directory that sysfs's link leads to; `None` for any
/// other device. A machine may have thousands, and reading `uevent` takes longer.
pub(super) fn loop_name(root: &Path, number: DeviceNumber) -> Option<OsString> {
    if number.major() != LOOP {
        return None;
    }
    let link = fs::read_link(directory(root, number)).ok()?;
    let name = link.file_name()?;
    name.to_str().is_some_and(is_loops).then(|| name.to_owned())
}

/// Reads the device's name below `/dev` from `/sys/dev/block/<n>/uevent`; `None` if there is no such device.
pub(super) fn name(root: &Path, number: DeviceNumber) -> Result<Option<PathBuf>, DeviceError> {
    let Some(uevent) = optional(number, &directory(root, number).join("uevent"))? else {
        // If no device is listed at all, this one isn't known to be gone.
        let all = root.join("dev/block");
        let listed = fs::read_dir(&all).map(drop);
        return listed
            .map(|()| None)
            .map_err(|error| sysfs_error(number, &all, error));
    };
    let mut lines = uevent.split(|byte| *byte == b'\n');
    let name = lines.find_map(|line| line.strip_prefix(b"DEVNAME="));
    Ok(name.map(|name| PathBuf::from(OsStr::from_bytes(name))))
}

/// Reads `/sys/dev/block/<n>/ro`.
pub(super) fn is_read_only(root: &Path, number: DeviceNumber) -> Result<bool, DeviceError> {
    Ok(required(number, &directory(root, number).join("ro"))?.trim_ascii() == b"1")
}

/// Reads `/sys/dev/block/<n>/size`, which is in units of 512 bytes on every device, and returns it in bytes.
pub(super) fn size(root: &Path, number: DeviceNumber) -> Result<u64, DeviceError> {
    let sectors = decimal(number, &directory(root, number).join("size"))?;
    Ok(sectors.saturating_mul(512))
}

/// Reads `/sys/dev/block/<n>/diskseq`; of a partition that of its disk.
///
/// Growth leaves it as it is. Device mapper's is its device's as long as that lives, also where a new
/// table is loaded (`lvextend`, a path of multipath's that comes or goes): that sets the disk's size
/// (`__bind` in drivers/md/dm.c). Anew are counted those with a new medium: loop and nbd say so
/// themselves (`disk_force_media_change`), removable disks when they are asked (block/disk-events.c).
pub(super) fn disk_seq(root: &Path, number: DeviceNumber) -> Result<Option<DiskSeq>, DeviceError> {
    let directory = directory(root, number);
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

/// Whether `/sys/dev/block/<n>/holders`, which a partition has too, lists a device.
pub(super) fn has_holders(root: &Path, number: DeviceNumber) -> Result<bool, DeviceError> {
    let holders = directory(root, number).join("holders");
    match fs::read_dir(&holders) {
        Ok(mut listing) => Ok(listing.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(sysfs_error(number, &holders, error)),
    }
}

/// Returns `/sys/dev/block/<n>`, which every block device has: a link to its directory.
fn directory(root: &Path, number: DeviceNumber) -> PathBuf {
    root.join("dev/block").join(number.to_string())
}

/// Returns the devices that a device lies on directly: the disk of a partition, and the slaves of a device mapper or md
/// device.
pub(super) fn directly_below(
    root: &Path,
    number: DeviceNumber,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let directory = directory(root, number);
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
        // ENXIO, ENODEV: the loop device was detached meanwhile.
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
