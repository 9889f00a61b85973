//! Reads attributes of block devices from sysfs, and lists loop devices. `root` is the mount point of sysfs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{DeviceError, DeviceNumber, DiskSeq};
use crate::bounded::{self, MAX_KERNEL_VALUE};

/// The major number of loop devices, and of some partitions on them (Documentation/admin-guide/devices.txt
/// of the kernel).
pub(super) const LOOP_MAJOR: u32 = 7;

/// The size limit of the kernel's list of disks in bytes. A node may have thousands of disks.
const MAX_LIST_SIZE: u64 = 4 << 20;

/// Returns the loop devices that are attached to a file, by the kernel's list of disks that have a size. In sysfs each
/// loop device would have to be looked up.
pub(super) fn loop_devices() -> Result<Vec<DeviceNumber>, DeviceError> {
    let file = Path::new("/proc/partitions");
    let list = bounded::read(file, MAX_LIST_SIZE).map_err(|source| {
        let file = file.to_owned();
        DeviceError::UnreadableDiskList { file, source }
    })?;
    Ok(parse_loop_devices(&String::from_utf8_lossy(&list)))
}

/// Returns the loop devices in a list with lines of `major minor #blocks name`.
pub(super) fn parse_loop_devices(list: &str) -> Vec<DeviceNumber> {
    let device = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (major, minor) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_loop = major == LOOP_MAJOR && is_loop_name(fields.nth(1)?);
        is_loop.then(|| DeviceNumber::new(major, minor))
    };
    list.lines().filter_map(device).collect()
}

/// Returns whether this is the name of a loop device, and not of a partition on one.
fn is_loop_name(name: &str) -> bool {
    let number = name.strip_prefix("loop");
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the devices in `loop_devices` whose backing file has this name according to the path in sysfs. The path may
/// belong to another mount namespace, in which the file has the same name, and may end in ` (deleted)`.
pub(super) fn with_file_name(
    root: &Path,
    loop_devices: Vec<DeviceNumber>,
    name: &OsStr,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let mut found = Vec::new();
    for device in loop_devices {
        let path = match backing_file(root, device) {
            Ok(path) => path,
            // The path is too long for the kernel to show, so it isn't the path of the file that is looked for.
            Err(DeviceError::Sysfs { source, .. })
                if source.raw_os_error() == Some(libc::ENAMETOOLONG) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let path = path.as_ref().and_then(|path| path.file_name());
        let bytes = path.map_or(&[][..], OsStr::as_bytes);
        let undeleted = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
        if bytes == name.as_bytes() || undeleted == name.as_bytes() {
            found.push(device);
        }
    }
    Ok(found)
}

/// Reads `/sys/dev/block/<n>/loop/backing_file`; `None` if no file is attached. Unlike in mountinfo, the path isn't
/// escaped. The kernel adds one newline.
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

/// Reads `/sys/dev/block/<n>/loop/offset`, which is in bytes; `None` if no file is attached.
pub(super) fn loop_offset(root: &Path, number: DeviceNumber) -> Result<Option<u64>, DeviceError> {
    let file = directory(root, number).join("loop/offset");
    let Some(offset) = optional(number, &file)? else {
        return Ok(None);
    };
    parse(number, &file, &offset).map(Some)
}

/// Adds the loop devices among a device and all devices below it to `loop_devices`, with their names. Leaves out
/// devices that can't be read.
pub(super) fn add_loop_devices(
    root: &Path,
    number: DeviceNumber,
    loop_devices: &mut BTreeMap<DeviceNumber, OsString>,
) {
    let mut rest = vec![number];
    let mut visited = BTreeSet::from([number]);
    while let Some(device) = rest.pop() {
        if let Some(name) = loop_name(root, device) {
            loop_devices.insert(device, name);
            continue;
        }
        let lower = directly_below(root, device).unwrap_or_default();
        rest.extend(lower.into_iter().filter(|lower| visited.insert(*lower)));
    }
}

/// Returns the name of a loop device below `/dev`; `None` for any other device. It is the name of the directory that
/// the link in sysfs leads to. Reading `uevent` takes longer, and a node may have thousands of loop devices.
pub(super) fn loop_name(root: &Path, number: DeviceNumber) -> Option<OsString> {
    if number.major() != LOOP_MAJOR {
        return None;
    }
    let link = fs::read_link(directory(root, number)).ok()?;
    let name = link.file_name()?;
    name.to_str()
        .is_some_and(is_loop_name)
        .then(|| name.to_owned())
}

/// Reads the device's name below `/dev` from `/sys/dev/block/<n>/uevent`; `None` if there is no such device.
pub(super) fn name(root: &Path, number: DeviceNumber) -> Result<Option<PathBuf>, DeviceError> {
    let Some(uevent) = optional(number, &directory(root, number).join("uevent"))? else {
        // If sysfs lists no devices at all, it can't show that this device is gone.
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
    let file = directory(root, number).join("size");
    let sectors: u64 = parse(number, &file, &required(number, &file)?)?;
    Ok(sectors.saturating_mul(512))
}

/// Reads `/sys/dev/block/<n>/diskseq`. For a partition, reads the number of its disk. Returns `None` before Linux 5.15.
///
/// The number doesn't change when a device grows. A device-mapper device keeps it when a new table is loaded
/// (`lvextend`, a multipath path that comes or goes), because that only sets the disk's size (`__bind` in
/// drivers/md/dm.c). A new medium gets a new number: loop and nbd report one themselves (`disk_force_media_change`),
/// and removable disks when they are polled (block/disk-events.c).
pub(super) fn disk_seq(root: &Path, number: DeviceNumber) -> Result<Option<DiskSeq>, DeviceError> {
    let directory = directory(root, number);
    let mut file = directory.join("diskseq");
    let mut contents = optional(number, &file)?;
    if contents.is_none() && directory.join("partition").exists() {
        file = directory.join("..").join("diskseq");
        contents = optional(number, &file)?;
    }
    contents
        .map(|contents| parse(number, &file, &contents))
        .transpose()
}

/// Returns whether `/sys/dev/block/<n>/holders` lists a device. Partitions have that directory, too.
pub(super) fn has_holders(root: &Path, number: DeviceNumber) -> Result<bool, DeviceError> {
    let holders = directory(root, number).join("holders");
    match fs::read_dir(&holders) {
        Ok(mut listing) => Ok(listing.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(sysfs_error(number, &holders, error)),
    }
}

/// Returns `/sys/dev/block/<n>`, which is a link to the device's directory. Every block device has one.
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
    // Every device has `dev`, so this fails first if there is no such device.
    required(number, &directory.join("dev"))?;
    let mut below = Vec::new();
    if optional(number, &directory.join("partition"))?.is_some() {
        // A partition's directory is inside that of its disk.
        below.push(device_number(number, &directory.join("..").join("dev"))?);
    }
    let slaves = directory.join("slaves");
    let listing = match fs::read_dir(&slaves) {
        Ok(listing) => listing,
        // Partitions have no slaves.
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
    parse(number, file, &required(number, file)?)
}

fn parse<T: FromStr>(number: DeviceNumber, file: &Path, contents: &[u8]) -> Result<T, DeviceError> {
    let text = String::from_utf8_lossy(contents);
    text.trim().parse().map_err(|_| {
        let error = io::Error::new(io::ErrorKind::InvalidData, format!("unexpected {text:?}"));
        sysfs_error(number, file, error)
    })
}

/// Reads a file that must exist.
fn required(number: DeviceNumber, file: &Path) -> Result<Vec<u8>, DeviceError> {
    bounded::read(file, MAX_KERNEL_VALUE).map_err(|error| sysfs_error(number, file, error))
}

/// Reads a file; `None` if it doesn't exist.
fn optional(number: DeviceNumber, file: &Path) -> Result<Option<Vec<u8>>, DeviceError> {
    match required(number, file) {
        Ok(contents) => Ok(Some(contents)),
        // ENXIO and ENODEV: the loop device has been detached meanwhile.
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
