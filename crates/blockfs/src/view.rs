//! Creates a container's view of a volume: a detached copy of the volume's mount, or of a subPath of it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use crate::Deadline;
use crate::errno::Name;
use crate::fstypes::{hint_for_volume_error, types_with_id_mapping};
use crate::kernel;
use crate::subpath::{self, MissingPolicy, MountPointType, SubpathError};
use crate::sys;

/// The properties of a view that one of a container's mounts needs.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The path from the root of the volume to the root of the view; empty for the whole volume.
    pub subpath: &'a Path,
    /// Whether the container's mount has the option `ro`.
    pub read_only: bool,
    /// The user namespace that the owners of files are mapped to; `None` for no mapping.
    pub ids: Option<BorrowedFd<'a>>,
}

/// A mount that isn't attached anywhere yet.
#[derive(Debug)]
pub struct DetachedMount {
    /// The descriptor from `fsmount(2)` or `open_tree(2)` with `OPEN_TREE_CLONE`. Closing it removes the mount unless
    /// it has been attached.
    pub fd: OwnedFd,
    /// The kind of the mount's root. A directory is mounted on a directory, a file on a file.
    pub kind: MountPointType,
}

/// The error of creating a view.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The subPath doesn't lead to anything that a container may be given.
    #[error(transparent)]
    Subpath(#[from] SubpathError),
    /// The file system doesn't support id mappings.
    #[error(
        "mount_setattr(MOUNT_ATTR_IDMAP): {}: the container has a user namespace, and this file system can't be mapped \
         into it; {} can; hint: use no user namespace (in a pod: leave hostUsers unset), or another file system",
        Name(*.0), types_with_id_mapping(kernel::version())
    )]
    Ids(Errno),
    /// The deadline passed before all views of a container were ready.
    #[error(
        "timeout: only {done} of its {all} mounts were ready before the create's deadline; hint: give the \
         container fewer mounts of the volume"
    )]
    TooSlow {
        /// The number of mounts that were ready.
        done: usize,
        /// The number of all mounts.
        all: usize,
    },
    /// A system call failed.
    #[error("{call}: {}{}", Name(*errno), hint_for_volume_error(*errno))]
    Call {
        /// The call, with its arguments.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
}

/// Creates several views as [`create`] does. Fails if the deadline passes first, as a container may have thousands.
pub fn create_all<'v>(
    root: &OwnedFd,
    views: impl ExactSizeIterator<Item = View<'v>>,
    deadline: Deadline,
) -> Result<Vec<DetachedMount>, ViewError> {
    let all = views.len();
    let mut created = Vec::with_capacity(all);
    for view in views {
        if deadline.is_expired() {
            let done = created.len();
            return Err(ViewError::TooSlow { done, all });
        }
        created.push(create(root, view)?);
    }
    Ok(created)
}

/// Creates a view of the volume whose root is `root`. A subPath that doesn't exist is created.
///
/// `root` must be the root of an attached mount: older kernels can't clone directories below the root of a detached
/// mount. (Linux 6.18 can.)
pub fn create(root: &OwnedFd, view: View<'_>) -> Result<DetachedMount, ViewError> {
    let target = subpath::resolve(root, view.subpath, MissingPolicy::Create)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let failed = |call| move |errno| ViewError::Call { call, errno };
    let fd = open_tree(&target.fd, "", flags).map_err(failed("open_tree(volume, CLONE)"))?;
    // In a sandbox with rootfsPropagation `shared`, the volume's mount is shared if the delegate sets the propagation
    // after the hooks, as crun does. A mount that one container makes in its view must not appear in another container.
    sys::set_propagation_private(&fd).map_err(failed("mount_setattr(MS_PRIVATE)"))?;
    if let Some(user_namespace) = view.ids {
        sys::set_id_mapping(&fd, user_namespace).map_err(ViewError::Ids)?;
    }
    if view.read_only {
        // The delegate makes its own bind mount read-only, too. But this mount may be visible as well: a hostPath
        // volume can include the attach directory.
        sys::add_attributes(&fd, MountAttrFlags::MOUNT_ATTR_RDONLY)
            .map_err(failed("mount_setattr(MOUNT_ATTR_RDONLY)"))?;
    }
    Ok(DetachedMount {
        fd,
        kind: target.kind,
    })
}
