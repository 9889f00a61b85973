//! Refuses clones and restored snapshots of a mounted btrfs: two devices with the same UUID (docs/protocol.md, "A clone
//! beside its original").

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::SUPERBLOCK;
use crate::bounded::{self, MAX_KERNEL_VALUE};
use crate::device::{DeviceFacts, DeviceNumber};
use crate::fstypes::descriptor::UnfitDevice;

/// The kernel's list of the btrfs file systems that are mounted in any namespace
/// (Documentation/ABI/testing/sysfs-fs-btrfs).
const MOUNTED: &str = "/sys/fs/btrfs";

/// Fails if the kernel would confuse the device's btrfs with one that is mounted, or if the btrfs has further devices.
///
/// Must be called before the mount, because mounting a clone can write to it, and again after the mount.
pub(super) fn check(device: &DeviceFacts) -> Result<(), UnfitDevice> {
    // If the device holds no btrfs, the mount fails with a better error.
    let Ok(Some(found)) = SUPERBLOCK.read(device) else {
        return Ok(());
    };
    let unfit = |reason, hint| UnfitDevice {
        fstype: "btrfs",
        device: device.path().to_owned(),
        reason,
        hint,
    };
    if found.devices > 1 {
        let count = found.devices;
        return Err(unfit(
            format!("the file system is on {count} devices, but a volume is a single device"),
            "mount it outside of any pod, and remove the other devices from it (btrfs device remove)",
        ));
    }
    let mounted = read_mounted(Path::new(MOUNTED))
        .map_err(|error| unfit(format!("read {MOUNTED}: {error}"), "mount a sysfs at /sys"))?;
    let fsid = found.uuid.to_string();
    match find_mounted_clone(device.number(), &fsid, &mounted) {
        None => Ok(()),
        Some(other) => Err(unfit(
            format!(
                "its file-system id {fsid} is also that of \"{}\", which is mounted ({MOUNTED})",
                other.display()
            ),
            "before a clone or a restored snapshot is staged, give it its own id (btrfstune -u)",
        )),
    }
}

/// A btrfs that is mounted in any namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mounted {
    /// The file system's id on the disk.
    fsid: String,
    /// Whether the kernel uses a temporary id for it, because a file system with the same id was already mounted.
    is_temporary: bool,
    devices: Vec<(PathBuf, DeviceNumber)>,
}

impl Mounted {
    fn has(&self, device: DeviceNumber) -> bool {
        self.devices.iter().any(|(_, number)| *number == device)
    }
}

/// Returns the path of a device of another mounted file system with this id. Returns `None` if no other one is mounted,
/// or if the device `own` is mounted with this id.
fn find_mounted_clone<'a>(
    own: DeviceNumber,
    fsid: &str,
    mounted: &'a [Mounted],
) -> Option<&'a Path> {
    if mounted.iter().any(|fs| fs.has(own) && !fs.is_temporary) {
        return None;
    }
    let clone = mounted.iter().find(|fs| fs.fsid == fsid && !fs.has(own))?;
    clone.devices.first().map(|(path, _)| path.as_path())
}

/// Reads the list of mounted file systems. File systems that are unmounted meanwhile are left out.
fn read_mounted(list: &Path) -> io::Result<Vec<Mounted>> {
    let entries = match fs::read_dir(list) {
        // No btrfs was ever mounted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut mounted = Vec::new();
    for entry in entries {
        let directory = entry?.path();
        // The directory `features`, or a file system that was unmounted meanwhile.
        let Ok(devices) = fs::read_dir(directory.join("devices")) else {
            continue;
        };
        let is_temporary = read(&directory.join("temp_fsid")).is_some_and(|text| text == "1");
        let fsid = if is_temporary {
            read(&directory.join("metadata_uuid"))
        } else {
            let name = directory.file_name();
            name.map(|name| name.to_string_lossy().into_owned())
        };
        let devices = devices.flatten().filter_map(|device| {
            let name = device.file_name().to_string_lossy().replace('!', "/");
            let number = read(&device.path().join("dev"))?.parse().ok()?;
            Some((Path::new("/dev").join(name), number))
        });
        mounted.extend(fsid.map(|fsid| Mounted {
            fsid,
            is_temporary,
            devices: devices.collect(),
        }));
    }
    Ok(mounted)
}

fn read(file: &Path) -> Option<String> {
    let text = bounded::read_to_string(file, MAX_KERNEL_VALUE).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: &str = "3a56702c-6dc9-47ea-863c-5dcc6e545bd4";
    const OTHER: &str = "0e9e743b-1f37-4996-ba51-228adf19f6e9";

    fn number(minor: u32) -> DeviceNumber {
        DeviceNumber::new(7, minor)
    }

    fn mounted(fsid: &str, is_temporary: bool, minor: u32) -> Mounted {
        let path = format!("/dev/loop{minor}").into();
        Mounted {
            fsid: fsid.to_owned(),
            is_temporary,
            devices: vec![(path, number(minor))],
        }
    }

    #[test]
    fn a_mounted_clone_is_another_device_with_the_same_id() {
        let original = || mounted(FSID, false, 1);
        let clone = || mounted(FSID, true, 2);
        for (own, list, expected) in [
            (1, vec![], None),
            (1, vec![mounted(OTHER, false, 3)], None),
            (
                2,
                vec![mounted(OTHER, false, 3), original()],
                Some("/dev/loop1"),
            ),
            // The clone was mounted elsewhere, with a temporary id.
            (3, vec![clone()], Some("/dev/loop2")),
            (2, vec![original(), clone()], Some("/dev/loop1")),
            // The device itself is mounted; this is a second mount of it.
            (1, vec![original()], None),
            (1, vec![clone(), original()], None),
            (2, vec![clone()], None),
        ] {
            let found = find_mounted_clone(number(own), FSID, &list);
            assert_eq!(found, expected.map(Path::new), "loop{own} beside {list:?}");
        }
    }

    /// Returns a directory like /sys/fs/btrfs, with the files that are read.
    fn sysfs(entries: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().expect("a temporary directory");
        for (directory, files) in entries {
            for (file, contents) in *files {
                let file = sysfs.path().join(directory).join(file);
                fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
                fs::write(file, contents).expect("a file");
            }
        }
        sysfs
    }

    #[test]
    fn the_list_has_the_ids_on_the_disk() {
        let sysfs = sysfs(&[
            ("features", &[("temp_fsid", "0\n")]),
            (
                FSID,
                &[("devices/loop1/dev", "7:1\n"), ("temp_fsid", "0\n")],
            ),
            (
                "00000000-0000-0000-0000-000000000001",
                &[
                    ("devices/loop2/dev", "7:2\n"),
                    ("temp_fsid", "1\n"),
                    ("metadata_uuid", "3a56702c-6dc9-47ea-863c-5dcc6e545bd4\n"),
                ],
            ),
            // Before Linux 6.7.
            (OTHER, &[("devices/cciss!c0d0/dev", "104:0\n")]),
        ]);
        let mut list = read_mounted(sysfs.path()).expect("the list is read");
        list.sort_by_key(|fs| fs.devices[0].1.to_string());
        let old = Mounted {
            devices: vec![("/dev/cciss/c0d0".into(), DeviceNumber::new(104, 0))],
            ..mounted(OTHER, false, 0)
        };
        assert_eq!(list, [old, mounted(FSID, false, 1), mounted(FSID, true, 2)]);
    }

    #[test]
    fn a_missing_list_is_empty() {
        let sysfs = sysfs(&[]);
        let none = read_mounted(&sysfs.path().join("btrfs")).expect("no error");
        assert_eq!(none, []);
    }
}
