//! Mounts on the host, for volumes that aren't deferred.

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

/// kubelet waits two minutes for a call of CSI's; a walk that takes longer goes on at the next.
const FSGROUP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(110);

/// For those who look at a volume, and don't use it.
const UNMOUNT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// The most mounts over one another at one path that are removed. More are a mistake.
const MAX_STACKED_MOUNTS: usize = 64;

/// Something can't be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountsError {
    /// A call failed.
    #[error("{call} {}: {}", path.display(), Name(*errno))]
    Call {
        /// The system call.
        call: &'static str,
        path: PathBuf,
        /// The error.
        errno: Errno,
    },
    /// Options.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The file system.
    #[error("{told}")]
    FileSystem {
        /// The reason, without the options that were given: CSI lets them be secrets.
        told: String,
        /// The caller's mistake.
        is_request_error: bool,
    },
    /// fsGroup.
    #[error(transparent)]
    FsGroup(#[from] FsGroupError),
    /// The mount table.
    #[error(transparent)]
    MountInfo(#[from] MountInfoError),
    /// A loop device.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// Something else is mounted there.
    #[error("{}: {what} is mounted there; hint: unmount it, it isn't this volume's", path.display())]
    Occupied {
        path: PathBuf,
        /// What is mounted there.
        what: String,
    },
}

impl MountsError {
    /// Whether it is how things stand, and not a failure.
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

/// Mounts a volume's file system at a target path. It is there whole, with its owners, or it isn't.
pub(crate) fn mount(
    device: &Device,
    mount: &MountCapability,
    publication: &Publication,
    target: &Path,
) -> Result<(), MountsError> {
    let mut options = options::parse(&mount.options)?;
    options.read_only |= publication.usage.is_read_only();
    let place = create_target_directory(target)?;
    // Another pod of the node may have it mounted, and be at work in it.
    let is_shared = device.is_held_exclusively().unwrap_or(true);
    let device = DeviceFacts::from(device.clone());
    let detached = instantiate(&device, mount, &options)?;
    let is_written = !publication.read_only && !options.read_only;
    if let Some(group) = mount.group.filter(|_| is_written) {
        let order = FsGroupRequest {
            group,
            policy: mount.change_policy.unwrap_or_default(),
            device: Some(&device),
            in_use: is_shared,
        };
        fsgroup::apply(
            &detached,
            &order,
            Deadline::after(FSGROUP_TIMEOUT),
            &mut |progress| {
                tracing::info!("fsGroup {group}: {progress}");
            },
        )?;
    }
    if publication.read_only {
        // A second pod of the node may write: the superblock is read-only for nobody.
        sys::add_attributes(&detached, MountAttrFlags::MOUNT_ATTR_RDONLY)
            .map_err(failed("mount_setattr(MOUNT_ATTR_RDONLY)", target))?;
    }
    attach(&detached, &place, target)
}

/// A volume's file system, mounted nowhere, as it is to be written to.
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
        told: without_values(&crust_state::error_message(&error), options),
        is_request_error: error.is_request_error(),
    })
}

/// A sentence without what options were given. The kernel's own words may have that alone.
fn without_values(text: &str, options: &MountOptions) -> String {
    let mut text = text.to_owned();
    for option in &options.fs_options {
        if let FsOption::Value { key, value } = option {
            text = text.replace(&format!("{key}={value}"), &format!("{key}=…"));
            // Shorter ones are words and numbers of the sentence's own.
            if value.len() > 3 {
                text = text.replace(value.as_str(), "…");
            }
        }
    }
    text
}

/// The root of what is mounted at a path.
pub(crate) fn open_root(target: &Path) -> Result<OwnedFd, MountsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, target, flags, Mode::empty()).map_err(failed("open", target))
}

/// The same, open for more than to be named.
pub(crate) fn reopen_readable(root: &OwnedFd, target: &Path) -> Result<OwnedFd, MountsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(root, ".", flags, Mode::empty()).map_err(failed("open", target))
}

/// Gives a block volume's device node a second place.
pub(crate) fn bind_device(device: &Device, target: &Path) -> Result<(), MountsError> {
    let made = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target);
    match made {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("open", target)(errno::of(&error))),
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(CWD, target, flags, Mode::empty()).map_err(failed("open", target))?;
    let node = device.resolved_path();
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let detached = open_tree(CWD, node, flags).map_err(failed("open_tree", node))?;
    // Or what is mounted over one of the two places would be at the other.
    sys::set_propagation_private(&detached).map_err(failed("mount_setattr(MS_PRIVATE)", target))?;
    attach(&detached, &place, target)
}

fn attach(detached: &OwnedFd, place: impl AsFd, target: &Path) -> Result<(), MountsError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(detached, "", place, "", flags).map_err(failed("move_mount", target))
}

/// A target directory, made as kubelet makes its own; what is above it is the orchestrator's to make.
pub(crate) fn create_target_directory(target: &Path) -> Result<OwnedFd, MountsError> {
    match fs::DirBuilder::new().mode(0o750).create(target) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("mkdir", target)(errno::of(&error))),
    }
    open_root(target)
}

/// Returns the topmost mount at a path.
pub(crate) fn mount_at(target: &Path) -> Result<Option<Mounted>, MountsError> {
    if !may_be_mount(target) {
        return Ok(None);
    }
    // The mount table has the path without its links, of which the target itself is none. It isn't asked: a file
    // system that was shut down doesn't answer.
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(None);
    };
    let parent = parent
        .canonicalize()
        .map_err(|error| failed("realpath", parent)(errno::of(&error)))?;
    let real = parent.join(name);
    let mounts = mountinfo::read_own()?;
    Ok(mounts.into_iter().rfind(|mount| mount.mount_point == real))
}

/// Whether a volume is mounted at a path, or its device's node: `false` where nothing is, and an error where
/// something else is.
pub(crate) fn is_mounted_at(devices: &[Device], target: &Path) -> Result<bool, MountsError> {
    let Some(mounted) = mount_at(target)? else {
        return Ok(false);
    };
    let node = device_node(target);
    let is_it = |device: &Device| match node {
        Some(node) => node == device.number(),
        // A btrfs's device is none of its disks'.
        None => {
            mounted.device == device.number()
                || mounted.source == device.resolved_path().as_os_str()
        }
    };
    if devices.iter().any(is_it) {
        return Ok(true);
    }
    Err(occupied(target, &mounted))
}

/// Returns the device of a node. A path whose file system doesn't answer is none, for /dev does.
fn device_node(path: &Path) -> Option<DeviceNumber> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let number = DeviceNumber::new(major(stat.st_rdev), minor(stat.st_rdev));
    is_device.then_some(number)
}

/// Whether it is worth looking a path up in the mount table, which may be long.
fn may_be_mount(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    match statx(CWD, path, flags, StatxFlags::TYPE) {
        Ok(stat) => stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        // It isn't there, or never can be.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP) => false,
        // An xfs that was shut down says EIO.
        Err(_) => true,
    }
}

/// Whether at a block volume's target there is the node of a loop device that shows nothing any more:
/// somebody has detached it by hand.
pub(crate) fn is_detached_block_device(
    publication: &Publication,
    target: &Path,
) -> Result<bool, MountsError> {
    Ok(publication.usage.mount.is_none() && loops::is_detached(target)?)
}

/// Unmounts a volume from a path, however often it was mounted there. What else is mounted there is somebody
/// else's, and an error. What a block volume was given is the node of a loop device: that goes whatever the device
/// shows by now, and without a record if it shows nothing any more.
pub(crate) fn unmount(
    devices: &[Device],
    recorded: Option<&Publication>,
    path: &Path,
) -> Result<(), MountsError> {
    for _ in 0..MAX_STACKED_MOUNTS {
        match (is_mounted_at(devices, path), recorded) {
            (Ok(true), _) => {}
            (Ok(false), _) => return Ok(()),
            // Whatever the device shows by now: nobody else has that path, and a pod mustn't have it.
            (Err(MountsError::Occupied { .. }), Some(recorded))
                if recorded.usage.mount.is_none()
                    && device_node(path).is_some_and(loops::is_loop) => {}
            (Err(MountsError::Occupied { .. }), None)
                if device_node(path).is_some_and(loops::is_loop) && loops::is_detached(path)? => {}
            (Err(error), _) => return Err(error),
        }
        // Whoever asks for the volume's stats has its root open for a moment.
        let unmounted = Deadline::after(UNMOUNT_TIMEOUT).poll(|| {
            match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
                Err(Errno::BUSY) => Ok(None),
                other => other.map(Some),
            }
        });
        let unmounted = unmounted.and_then(|it| it.ok_or(Errno::BUSY));
        unmounted.map_err(failed("umount2", path))?;
    }
    Err(failed("umount2", path)(Errno::BUSY))
}

/// Something else is mounted at a path.
pub(crate) fn occupied(path: &Path, mounted: &Mounted) -> MountsError {
    MountsError::Occupied {
        path: path.to_owned(),
        what: describe(mounted),
    }
}

/// A mount by its file system and source.
pub(crate) fn describe(mounted: &Mounted) -> String {
    let (fstype, source) = (&mounted.fstype, &mounted.source);
    format!(
        "{} ({})",
        fstype.to_string_lossy(),
        source.to_string_lossy()
    )
}

/// A mount below a directory, if there is one. A directory that can't be resolved has none.
pub(crate) fn mount_below(directory: &Path) -> Result<Option<Mounted>, MountInfoError> {
    let Ok(real) = directory.canonicalize() else {
        return Ok(None);
    };
    let mut mounts = mountinfo::read_own()?.into_iter();
    Ok(mounts.find(|mount| mount.mount_point != real && mount.mount_point.starts_with(&real)))
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(Errno) -> MountsError {
    let path = path.to_owned();
    move |errno| MountsError::Call { call, path, errno }
}
