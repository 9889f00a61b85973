//! Mounts on the host, of volumes that are not deferred.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::errno::{self, Name};
use crust_blockfs::filesystem::{self, MountRequest};
use crust_blockfs::fsgroup::{self, FsGroupError, FsGroupRequest};
use crust_blockfs::loops::{self, LoopError};
use crust_blockfs::mountinfo::{self, Mount as Mounted, MountInfoError};
use crust_blockfs::options::{self, FsOption, MountOptions, OptionsError};
use crust_blockfs::sys;
use crust_blockfs::{Deadline, DeviceNumber};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, StatxAttributes, StatxFlags, major, minor, openat,
    statat, statx,
};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree,
};

use crate::capability::MountCapability;
use crate::store::Publication;

/// The timeout of applying fsGroup. kubelet waits two minutes for a CSI call; the next call continues the walk.
const FSGROUP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(110);

/// The longest time to wait for processes that inspect a volume and don't use it.
const UNMOUNT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// The maximum number of mounts stacked at one path that are removed. More are not plausible.
pub(crate) const MAX_STACKED_MOUNTS: usize = 64;

/// The reason why something can't be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountsError {
    /// A system call failed.
    #[error("{call} {}: {}", path.display(), Name(*errno))]
    Call {
        call: &'static str,
        path: PathBuf,
        errno: Errno,
    },
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("{message}")]
    FileSystem {
        /// The cause. It doesn't contain values of mount options, because CSI permits them to be secrets.
        message: String,
        /// Whether the request is wrong, and not the node.
        is_request_error: bool,
    },
    #[error(transparent)]
    FsGroup(#[from] FsGroupError),
    #[error(transparent)]
    MountInfo(#[from] MountInfoError),
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// Something other than the volume is mounted at the path.
    #[error(
        "{}: {mounted} is mounted there and doesn't belong to this volume; hint: run `umount {}`",
        path.display(), path.display()
    )]
    Occupied {
        path: PathBuf,
        /// File system and source of the mount.
        mounted: String,
    },
}

impl MountsError {
    /// Returns whether the cause is the state of the volume or its path, and not a failure of the node.
    pub(crate) fn is_state(&self) -> bool {
        match self {
            Self::Occupied { .. } => true,
            Self::Call { errno, .. } => *errno == Errno::BUSY,
            Self::FileSystem {
                is_request_error, ..
            } => *is_request_error,
            _ => false,
        }
    }
}

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
    pod_mount.attach(&target_directory, target)
}

/// A detached mount of a volume, to be attached for a pod.
pub(crate) struct PodMount<'a, F> {
    pub(crate) detached: &'a OwnedFd,
    pub(crate) mount: &'a MountCapability<F>,
    /// Whether this pod can only read the volume.
    pub(crate) read_only: bool,
    /// The device and the use of the file system, for fsGroup: `device` and `in_use` of [`FsGroupRequest`]. `None` if
    /// the file system is read-only.
    pub(crate) fsgroup: Option<(Option<&'a DeviceFacts>, bool)>,
}

impl<F> PodMount<'_, F> {
    /// Applies fsGroup and attaches the mount. `target_directory` is the directory that `target` leads to.
    pub(crate) fn attach(
        &self,
        target_directory: &OwnedFd,
        target: &Path,
    ) -> Result<(), MountsError> {
        let writable = self.fsgroup.filter(|_| !self.read_only);
        if let (Some(group), Some((device, in_use))) = (self.mount.group, writable) {
            let request = FsGroupRequest {
                group,
                policy: self.mount.change_policy.unwrap_or_default(),
                device,
                in_use,
            };
            let deadline = Deadline::after(FSGROUP_TIMEOUT);
            fsgroup::apply(self.detached, &request, deadline, &mut |progress| {
                tracing::info!("fsGroup {group}: {progress}");
            })?;
        }
        if self.read_only {
            // Only the mount is read-only, not the superblock: another pod on the node may write.
            sys::add_attributes(self.detached, MountAttrFlags::MOUNT_ATTR_RDONLY)
                .map_err(failed("mount_setattr(MOUNT_ATTR_RDONLY)", target))?;
        }
        attach(self.detached, target_directory, target)
    }
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

/// Opens the root directory of the mount at a path, without read access (`O_PATH`).
pub(crate) fn open_root(target: &Path) -> Result<OwnedFd, MountsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, target, flags, Mode::empty()).map_err(failed("open", target))
}

/// Opens the root directory again for reading. `target` is only used in an error.
pub(crate) fn reopen_readable(root: &OwnedFd, target: &Path) -> Result<OwnedFd, MountsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(root, ".", flags, Mode::empty()).map_err(failed("open", target))
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

fn attach(detached: &OwnedFd, to: impl AsFd, target: &Path) -> Result<(), MountsError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(detached, "", to, "", flags).map_err(failed("move_mount", target))
}

/// Opens a target directory. Creates it with kubelet's mode if it is missing. Its parent must exist.
pub(crate) fn create_target_directory(target: &Path) -> Result<OwnedFd, MountsError> {
    match fs::DirBuilder::new().mode(0o750).create(target) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("mkdir", target)(errno::from_io_error(&error))),
    }
    open_root(target)
}

/// Returns the topmost mount at a path.
pub(crate) fn mount_at(target: &Path) -> Result<Option<Mounted>, MountsError> {
    if may_be_mount(target) {
        topmost_mount(target)
    } else {
        Ok(None)
    }
}

/// Returns the topmost mount at a path from the mount table, without access to its file system, which may hang.
pub(crate) fn topmost_mount(target: &Path) -> Result<Option<Mounted>, MountsError> {
    // The mount table has paths without symbolic links. Only the parent is resolved: the target itself is no link, and
    // if its file system was shut down, it can't be accessed.
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(None);
    };
    let parent = parent
        .canonicalize()
        .map_err(|error| failed("realpath", parent)(errno::from_io_error(&error)))?;
    let real = parent.join(name);
    let mounts = mountinfo::read_own()?;
    Ok(mounts.into_iter().rfind(|mount| mount.mount_point == real))
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

/// Returns whether a path can be a mount point, to avoid reading the mount table, which can be long.
fn may_be_mount(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    match statx(CWD, path, flags, StatxFlags::TYPE) {
        Ok(stat) => stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        // The path doesn't exist, or can't exist.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP) => false,
        // The error is EIO, for example, if the file system is an xfs that was shut down.
        Err(_) => true,
    }
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

/// Unmounts the topmost mount at a path.
pub(crate) fn unmount_topmost(path: &Path) -> Result<(), MountsError> {
    // A call for the volume's statistics holds its root open for a moment.
    let unmounted = Deadline::after(UNMOUNT_TIMEOUT).poll(|| {
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) => Ok(None),
            other => other.map(Some),
        }
    });
    let unmounted = unmounted.and_then(|it| it.ok_or(Errno::BUSY));
    unmounted.map_err(failed("umount2", path))
}

/// Returns the error that something else is mounted at a path.
pub(crate) fn other_mount_error(path: &Path, mounted: &Mounted) -> MountsError {
    MountsError::Occupied {
        path: path.to_owned(),
        mounted: describe(mounted),
    }
}

/// Returns the file system and the source of a mount, for messages.
pub(crate) fn describe(mounted: &Mounted) -> String {
    let (fstype, source) = (&mounted.fstype, &mounted.source);
    format!(
        "{} ({})",
        fstype.to_string_lossy(),
        source.to_string_lossy()
    )
}

/// Returns a mount below a directory, if there is one. `None` also if the directory's path can't be resolved.
pub(crate) fn mount_below(directory: &Path) -> Result<Option<Mounted>, MountInfoError> {
    let Ok(real) = directory.canonicalize() else {
        return Ok(None);
    };
    let mut mounts = mountinfo::read_own()?.into_iter();
    Ok(mounts.find(|mount| mount.mount_point != real && mount.mount_point.starts_with(&real)))
}

pub(crate) fn failed(call: &'static str, path: &Path) -> impl FnOnce(Errno) -> MountsError {
    let path = path.to_owned();
    move |errno| MountsError::Call { call, path, errno }
}
