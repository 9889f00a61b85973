//! The holders of a device, for a message: what is unreadable is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::{Deadline, bounded};

use crate::device::Device;
use crate::fstypes::has_anonymous_device;
use crate::mountinfo::{Mount, MountInfo};

/// Limit for reading the mount tables of all processes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Holders that are named at most.
const MOST: usize = 3;

/// Returns what uses a device, for people, apart from processes that merely have it open: device mapper
/// and md devices, other loop devices, swap, and mounts in any mount namespace. `None` where none is seen.
pub(super) fn holders(device: &Device) -> Option<String> {
    let mut found = stacked(device);
    found.extend(loops_on(device));
    if is_swap(device.path()) {
        found.push("swap is on it".to_owned());
    }
    if found.is_empty() {
        found = mounts(device);
    }
    found.truncate(MOST);
    (!found.is_empty()).then(|| found.join(", "))
}

/// Returns the devices that sysfs lists as holders; one of device mapper by its own name.
fn stacked(device: &Device) -> Vec<String> {
    let holders = format!("/sys/dev/block/{}/holders", device.number());
    let names = fs::read_dir(holders).into_iter().flatten().flatten();
    names
        .map(|entry| {
            let name = entry.file_name();
            let mapped = format!("/sys/block/{}/dm/name", name.display());
            match bounded::read_to_string(Path::new(&mapped), bounded::MAX_KERNEL_VALUE) {
                Ok(mapped) => format!("/dev/mapper/{} lies on it", mapped.trim()),
                Err(_) => format!("/dev/{} lies on it", name.display()),
            }
        })
        .collect()
}

/// Returns the loop devices that have the device as their file, which is no exclusive claim on it.
fn loops_on(device: &Device) -> Vec<String> {
    let name = device.path().file_name().unwrap_or_default();
    let named = Device::loop_devices_by_file_name(name)
        .unwrap_or_default()
        .into_iter();
    let shows = |other: &Device| {
        let file = other.backing_file().ok().flatten();
        file.is_some_and(|file| file == device.path())
    };
    named
        .filter(shows)
        .map(|other| format!("loop device {} shows it", other.path().display()))
        .collect()
}

fn is_swap(path: &Path) -> bool {
    let swaps = bounded::read_to_string(Path::new("/proc/swaps"), bounded::MAX_KERNEL_VALUE);
    let swaps = swaps.unwrap_or_default();
    let mut areas = swaps.lines().skip(1);
    areas.any(|line| line.split_ascii_whitespace().next().map(Path::new) == Some(path))
}

/// Returns the first mount of the device in each mount namespace, such as a container's. This process's own comes
/// first: the table of one that is stuck in a lookup may take longer to read than there is time for.
fn mounts(device: &Device) -> Vec<String> {
    let deadline = Deadline::after(PATIENCE);
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    let own = i32::try_from(std::process::id()).ok();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in own.into_iter().chain(all) {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else {
            continue;
        };
        if !seen.insert(namespace) {
            continue;
        }
        if deadline.is_expired() || found.len() == MOST {
            break;
        }
        if let Some(mount) = mount_of(device, pid) {
            let place = mount.mount_point.display().to_string();
            found.push(format!(
                "it is mounted at {place:?} in the mount namespace of process {pid}"
            ));
        }
    }
    found
}

/// Returns a process's first mount of a device. Some file systems have a device number of their own.
fn mount_of(device: &Device, pid: i32) -> Option<Mount> {
    let number = device.number();
    let table = MountInfo::of_process(pid).ok()?;
    let mounts = table.select(|line| line.device == number || has_anonymous_device(line.fstype));
    let is_of_device =
        |mount: &Mount| mount.device == number || Path::new(&mount.source) == device.path();
    mounts.ok()?.into_iter().find(is_of_device)
}
