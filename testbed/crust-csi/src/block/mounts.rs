//! Mounts of block volumes on the host: of their file systems, and of their device nodes.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::errno;
use crust_blockfs::filesystem::{self, MountRequest};
use crust_blockfs::loops;
use crust_blockfs::options::{self, FsOption, MountOptions};
use crust_blockfs::sys;
use crust_blockfs::{Deadline, DeviceNumber};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, major, minor, openat, statat};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::{MountCapability, Publication};
use crate::mounts::{
    MAX_STACKED_MOUNTS, MountsError, PodMount, attach, create_target_directory, failed, mount_at,
    other_mount_error, unmount_topmost,
};

/// The timeout of applying fsGroup. kubelet waits two minutes for a CSI call; the next call continues the walk.
const FSGROUP_TIMEOUT: Duration = Duration::from_secs(110);

/// Mounts a volume's file system at a target path. The mount appears only after fsGroup has been applied.
pub(crate) fn mount(
    device: &Device,
    mount: &MountCapability,
    publication: &Publication,
    target: &Path,
) -> Result<(), MountsError> {
    let mut options = options::parse(&mount.options)?;
    options.read_only |= publication.usage.is_read_only();
    let target_directory = create_target_directory(target)?;
    // Another pod on the node may have the volume mounted, and may be writing to it.
    let is_shared = device.is_held_exclusively().unwrap_or(true);
    let device = DeviceFacts::from(device.clone());
    let detached = instantiate(&device, mount, &options)?;
    let pod_mount = PodMount {
        detached: &detached,
        mount,
        read_only: publication.read_only,
        fsgroup: (!options.read_only).then_some((Some(&device), is_shared)),
    };
    pod_mount.prepare(target, Deadline::after(FSGROUP_TIMEOUT))?;
    attach(&detached, &target_directory, target)
}

/// Returns a detached mount of a volume's file system, which can be written to.
pub(crate) fn mount_detached(
    device: &DeviceFacts,
    mount: &MountCapability,
) -> Result<OwnedFd, MountsError> {
    let mut options = options::parse(&mount.options)?;
    options.read_only = false;
    instantiate(device, mount, &options)
}

fn instantiate(
    device: &DeviceFacts,
    mount: &MountCapability,
    options: &MountOptions,
) -> Result<OwnedFd, MountsError> {
    let request = MountRequest {
        device,
        fstype: mount.fstype.name(),
        options,
        exclusive: false,
    };
    filesystem::mount_detached(&request).map_err(|error| MountsError::FileSystem {
        message: without_option_values(&crust_state::error_message(&error), options),
        is_request_error: error.is_request_error(),
    })
}

/// Removes the values of mount options from a message. The kernel's messages may contain a value without its key.
pub(crate) fn without_option_values(text: &str, options: &MountOptions) -> String {
    let mut text = text.to_owned();
    for option in &options.fs_options {
        if let FsOption::Value { key, value } = option {
            text = text.replace(&format!("{key}={value}"), &format!("{key}=…"));
            // Short values are not replaced, because the message itself may contain the same word or number.
            if value.len() > 3 {
                text = text.replace(value.as_str(), "…");
            }
        }
    }
    text
}

/// Bind mounts the device node of a block volume at a target path. Creates the target file if it is missing.
pub(crate) fn bind_device(device: &Device, target: &Path) -> Result<(), MountsError> {
    let created = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target);
    match created {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("open", target)(errno::from_io_error(&error))),
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target_file = openat(CWD, target, flags, Mode::empty()).map_err(failed("open", target))?;
    let node = device.resolved_path();
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let detached = open_tree(CWD, node, flags).map_err(failed("open_tree", node))?;
    // Otherwise a mount over one of the two paths would propagate to the other.
    sys::set_propagation_private(&detached).map_err(failed("mount_setattr(MS_PRIVATE)", target))?;
    attach(&detached, &target_file, target)
}

/// Returns whether a volume or its device node is mounted at a path. Fails with [`MountsError::Occupied`] if something
/// else is mounted there.
pub(crate) fn is_mounted_at(devices: &[Device], target: &Path) -> Result<bool, MountsError> {
    let Some(mounted) = mount_at(target)? else {
        return Ok(false);
    };
    let node = device_node(target);
    let is_volume = |device: &Device| match node {
        Some(node) => node == device.number(),
        // The device number of a mounted btrfs isn't that of its disk, so the source is compared, too.
        None => {
            mounted.device == device.number()
                || mounted.source == device.resolved_path().as_os_str()
        }
    };
    if devices.iter().any(is_volume) {
        return Ok(true);
    }
    Err(other_mount_error(target, &mounted))
}

/// Returns the device number if a path is a block device node. `None` also if the path can't be read: /dev always can.
fn device_node(path: &Path) -> Option<DeviceNumber> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let number = DeviceNumber::new(major(stat.st_rdev), minor(stat.st_rdev));
    is_device.then_some(number)
}

/// Returns whether the target of a block volume is the node of a loop device that was detached by hand.
pub(crate) fn is_detached_block_device(
    publication: &Publication,
    target: &Path,
) -> Result<bool, MountsError> {
    Ok(publication.usage.mount.is_none() && loops::is_detached(target)?)
}

/// Unmounts all mounts of a volume at a path. Fails if something else is mounted there.
///
/// The node of a loop device is an exception, because it is what a block volume gets. It is unmounted even if another
/// image is attached to the device by now. Without a record, it is unmounted only if the device is detached.
pub(crate) fn unmount(
    devices: &[Device],
    recorded: Option<&Publication>,
    path: &Path,
) -> Result<(), MountsError> {
    for _ in 0..MAX_STACKED_MOUNTS {
        match (is_mounted_at(devices, path), recorded) {
            (Ok(true), _) => {}
            (Ok(false), _) => return Ok(()),
            // The path belongs to this volume, and the pod must not keep a device that may have another image by now.
            (Err(MountsError::Occupied { .. }), Some(recorded))
                if recorded.usage.mount.is_none()
                    && device_node(path).is_some_and(loops::is_loop) => {}
            (Err(MountsError::Occupied { .. }), None)
                if device_node(path).is_some_and(loops::is_loop) && loops::is_detached(path)? => {}
            (Err(error), _) => return Err(error),
        }
        unmount_topmost(path)?;
    }
    Err(failed("umount2", path)(Errno::BUSY))
}
