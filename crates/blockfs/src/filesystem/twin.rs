//! Clones and restored snapshots: two devices with one UUID (docs/protocol.md, "A clone beside
//! its original").

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bounded::{self, KERNELS_WORD};

use super::error::{MountError, Refusal};
use super::{Cause, Request};
use crate::device::{DeviceFacts, DeviceNumber};
use crate::options::{FsOption, MountOptions};
use crate::probe::{self, Kind, Signature};

/// Where the kernel lists the btrfs that are mounted, in whatever namespace
/// (Documentation/ABI/testing/sysfs-fs-btrfs).
const MOUNTED_BTRFS: &str = "/sys/fs/btrfs";

/// The option with which xfs doesn't mind a UUID that is mounted already.
const NO_UUID: &str = "nouuid";

/// The options for a second try at an xfs that was refused; `None` where `nouuid` can't be what it
/// lacked. All that the option does is to skip the look for a twin, which xfs takes before it
/// replays the log: where the mount succeeds with it and not without, a twin is mounted. Asking
/// the other devices for their UUIDs instead could hang with any of them.
pub(super) fn with_no_uuid(
    request: &Request<'_>,
    options: &MountOptions,
    refusal: &Refusal,
) -> Option<MountOptions> {
    let refused = request.fstype == "xfs" && matches!(refusal.cause, Cause::Unacceptable { .. });
    let asked_for = options
        .fs_options
        .iter()
        .any(|option| option.key() == NO_UUID);
    // xfs refuses a UUID of zeroes too, and that is nobody's twin.
    if !refused || asked_for || look_at(request.device)?.uuid.is_nil() {
        return None;
    }
    let mut options = options.clone();
    options.fs_options.push(FsOption::Flag(NO_UUID.to_owned()));
    Some(options)
}

/// Refuses a btrfs that the kernel can't keep apart from one that is mounted, and one that lies on
/// more than this device. To be asked before the mount, which would otherwise have written to the
/// clone, and after it, since two may be mounted at once: from Linux 6.7 on the second gets a
/// temporary id, before that the kernel refuses it.
pub(super) fn check_btrfs(device: &DeviceFacts) -> Result<(), MountError> {
    // What isn't a btrfs is told by the mount's own error.
    let Some(signature) = look_at(device).filter(|found| found.kind == Kind::Btrfs) else {
        return Ok(());
    };
    if signature.devices > 1 {
        return Err(MountError::ManyDevices {
            device: device.path().to_owned(),
            count: signature.devices,
        });
    }
    let fsid = signature.uuid.to_string();
    let mounted = mounted_btrfs(Path::new(MOUNTED_BTRFS)).map_err(|source| {
        let directory = MOUNTED_BTRFS.into();
        MountError::Unreadable { directory, source }
    })?;
    match twin_of(device.number(), &fsid, &mounted) {
        None => Ok(()),
        Some(other) => Err(MountError::Twin {
            device: device.path().to_owned(),
            fsid,
            other: other.to_owned(),
        }),
    }
}

fn look_at(device: &DeviceFacts) -> Option<Signature> {
    device.opened().and_then(probe::probe).ok().flatten()
}

/// A mounted btrfs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mounted {
    /// The id on disk.
    fsid: String,
    /// It has another one in the kernel, for this one was taken.
    is_temporary: bool,
    devices: Vec<(PathBuf, DeviceNumber)>,
}

impl Mounted {
    fn has(&self, device: DeviceNumber) -> bool {
        self.devices.iter().any(|(_, number)| *number == device)
    }
}

/// The device of another mounted file system with this id; `None` as well where `own` is the one
/// that has it rightfully.
fn twin_of<'a>(own: DeviceNumber, fsid: &str, mounted: &'a [Mounted]) -> Option<&'a Path> {
    if mounted.iter().any(|fs| fs.has(own) && !fs.is_temporary) {
        return None;
    }
    let twin = mounted.iter().find(|fs| fs.fsid == fsid && !fs.has(own))?;
    twin.devices.first().map(|(path, _)| path.as_path())
}

/// Reads the list. What is unmounted meanwhile is left out.
fn mounted_btrfs(list: &Path) -> io::Result<Vec<Mounted>> {
    let entries = match fs::read_dir(list) {
        // No btrfs was ever mounted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut mounted = Vec::new();
    for entry in entries {
        let directory = entry?.path();
        // `features`, and what is unmounted meanwhile, have none.
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
    let text = bounded::read_to_string(file, KERNELS_WORD).ok()?;
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
    fn a_twin_is_another_device_with_the_same_id() {
        let original = || mounted(FSID, false, 1);
        let clone = || mounted(FSID, true, 2);
        for (own, list, twin) in [
            (1, vec![], None),
            (1, vec![mounted(OTHER, false, 3)], None),
            (
                2,
                vec![mounted(OTHER, false, 3), original()],
                Some("/dev/loop1"),
            ),
            // Somebody had the kernel mount the clone under a temporary id.
            (3, vec![clone()], Some("/dev/loop2")),
            (2, vec![original(), clone()], Some("/dev/loop1")),
            // Mounted already, and rightfully: this is a second mount of it.
            (1, vec![original()], None),
            (1, vec![clone(), original()], None),
            (2, vec![clone()], None),
        ] {
            let found = twin_of(number(own), FSID, &list);
            assert_eq!(found, twin.map(Path::new), "loop{own} beside {list:?}");
        }
    }

    /// A sysfs with the parts that count.
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
    fn the_list_is_read_with_temporary_ids_undone() {
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
        let mut list = mounted_btrfs(sysfs.path()).expect("it is read");
        list.sort_by_key(|fs| fs.devices[0].1.to_string());
        let old = Mounted {
            devices: vec![("/dev/cciss/c0d0".into(), DeviceNumber::new(104, 0))],
            ..mounted(OTHER, false, 0)
        };
        assert_eq!(list, [old, mounted(FSID, false, 1), mounted(FSID, true, 2)]);
    }

    #[test]
    fn where_no_btrfs_was_ever_mounted_there_are_no_twins() {
        let sysfs = sysfs(&[]);
        let none = mounted_btrfs(&sysfs.path().join("btrfs")).expect("no error");
        assert_eq!(none, []);
    }
}
