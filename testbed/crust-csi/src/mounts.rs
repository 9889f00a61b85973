//! Mounts on the host, of volumes that are not deferred.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crust_blockfs::Deadline;
use crust_blockfs::device::DeviceFacts;
use crust_blockfs::errno::{self, Name};
use crust_blockfs::fsgroup::{self, FsGroupError, FsGroupRequest};
use crust_blockfs::loops::LoopError;
use crust_blockfs::mountinfo::{self, Mount as Mounted, MountInfoError};
use crust_blockfs::options::OptionsError;
use crust_blockfs::sys;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MoveMountFlags, UnmountFlags, move_mount};

use crate::capability::MountCapability;
use crate::refusal::NodeError;

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

impl NodeError for MountsError {
    fn is_volume_state(&self) -> bool {
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
    /// Applies fsGroup until the deadline, and makes the mount read-only if this pod can only read. The mount can be
    /// attached afterwards. `target` is only used in errors.
    pub(crate) fn prepare(&self, target: &Path, deadline: Deadline) -> Result<(), MountsError> {
        let writable = self.fsgroup.filter(|_| !self.read_only);
        if let (Some(group), Some((device, in_use))) = (self.mount.group, writable) {
            let request = FsGroupRequest {
                group,
                policy: self.mount.change_policy.unwrap_or_default(),
                device,
                in_use,
            };
            fsgroup::apply(self.detached, &request, deadline, &mut |progress| {
                tracing::info!("fsGroup {group}: {progress}");
            })?;
        }
        if self.read_only {
            // Only the mount is read-only, not the superblock: another pod on the node may write.
            sys::add_attributes(self.detached, MountAttrFlags::MOUNT_ATTR_RDONLY)
                .map_err(failed("mount_setattr(MOUNT_ATTR_RDONLY)", target))?;
        }
        Ok(())
    }
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

/// Attaches a detached mount. `to` is the directory or file that `target` leads to.
pub(crate) fn attach(detached: &OwnedFd, to: impl AsFd, target: &Path) -> Result<(), MountsError> {
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

/// Returns whether a path can be a mount point, to avoid reading the mount table, which can be long.
fn may_be_mount(path: &Path) -> bool {
    // The server of a share isn't asked, because it may not answer.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, path, flags, StatxFlags::TYPE) {
        Ok(stat) => stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        // The path doesn't exist, or can't exist.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP) => false,
        // The error is EIO, for example, if the file system is an xfs that was shut down.
        Err(_) => true,
    }
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
