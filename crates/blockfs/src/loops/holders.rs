//! Finds the holders of a device, to name them in an error message. Whatever can't be read is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::{Deadline, bounded};

use crate::device::Device;
use crate::fstypes::has_anonymous_device;
use crate::mountinfo::{Mount, MountInfo};

/// The time limit for reading the mount tables of all processes.
const MOUNTS_TIMEOUT: Duration = Duration::from_secs(1);

/// The largest number of holders that are named.
const MAX_HOLDERS: usize = 3;

/// Describes the holders of a device: device-mapper and md devices, other loop devices, swap, and mounts in any mount
/// namespace. Processes that merely have the device open aren't included. `None` if no holder is found.
pub(super) fn holders(device: &Device) -> Option<String> {
    let mut found = devices_on_top(device);
    found.extend(loop_devices_on(device));
    if is_swap(device.path()) {
        found.push("it is swap space".to_owned());
    }
    if found.is_empty() {
        found = mounts(device);
    }
    found.truncate(MAX_HOLDERS);
    (!found.is_empty()).then(|| found.join(", "))
}

/// Describes the devices that sysfs lists as holders. A device-mapper device is named by its device-mapper name.
fn devices_on_top(device: &Device) -> Vec<String> {
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

/// Describes the loop devices that are attached to the device. Such a loop device isn't an exclusive holder.
fn loop_devices_on(device: &Device) -> Vec<String> {
    let name = device.path().file_name().unwrap_or_default();
    let candidates = Device::loop_devices_by_file_name(name).unwrap_or_default();
    let is_attached = |other: &Device| {
        let file = other.backing_file().ok().flatten();
        file.is_some_and(|file| file == device.path())
    };
    candidates
        .into_iter()
        .filter(is_attached)
        .map(|other| format!("loop device {} is attached to it", other.path().display()))
        .collect()
}

fn is_swap(path: &Path) -> bool {
    let swaps = bounded::read_to_string(Path::new("/proc/swaps"), bounded::MAX_KERNEL_VALUE);
    let swaps = swaps.unwrap_or_default();
    let mut areas = swaps.lines().skip(1);
    areas.any(|line| line.split_ascii_whitespace().next().map(Path::new) == Some(path))
}

/// Describes the first mount of the device in each mount namespace, such as a container's. The namespace of this
/// process comes first, because reading the mount table of a process that is stuck in a lookup may take all the time.
fn mounts(device: &Device) -> Vec<String> {
    let deadline = Deadline::after(MOUNTS_TIMEOUT);
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
        if deadline.is_expired() || found.len() == MAX_HOLDERS {
            break;
        }
        if let Some(mount) = find_mount(device, pid) {
            let path = mount.mount_point.display().to_string();
            found.push(format!(
                "it is mounted at {path:?} in the mount namespace of process {pid}"
            ));
        }
    }
    found
}

/// Returns the first mount of the device in a process's mount table. File systems with an anonymous device number are
/// found by the source of the mount.
fn find_mount(device: &Device, pid: i32) -> Option<Mount> {
    let number = device.number();
    let table = MountInfo::read_process(pid).ok()?;
    let mounts = table.select(|line| line.device == number || has_anonymous_device(line.fstype));
    let is_of_device =
        |mount: &Mount| mount.device == number || Path::new(&mount.source) == device.path();
    mounts.ok()?.into_iter().find(is_of_device)
}
