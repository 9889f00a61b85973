//! Makes a container's view of a volume: a copy of its mount, from the subPath down.

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

/// The view of a volume that a container's mount shows.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// From where down; empty for all of it.
    pub subpath: &'a Path,
    /// The mount has the option `ro`.
    pub read_only: bool,
    /// The user namespace whose ids the files' owners are shown as.
    pub ids: Option<BorrowedFd<'a>>,
}

/// A mount that is attached nowhere yet, and what its root is.
#[derive(Debug)]
pub struct DetachedMount {
    /// From `fsmount(2)` or `open_tree(2)` with `OPEN_TREE_CLONE`.
    pub fd: OwnedFd,
    /// Directories are mounted on directories, files on files.
    pub kind: MountPointType,
}

/// The error of making a view.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A subPath leads nowhere that a container may be given.
    #[error(transparent)]
    Subpath(#[from] SubpathError),
    /// The file system can't show other owners.
    #[error(
        "mount_setattr(MOUNT_ATTR_IDMAP): {}; hint: the container has a user namespace, which \
         this file system can't be mapped into; {} can", Name(*.0), types_with_id_mapping(kernel::version())
    )]
    Ids(Errno),
    /// A container has more mounts of the volume than there is time for.
    #[error(
        "only {done} of its {all} mounts were ready when the time for a create was over; hint: give the \
         container fewer mounts of it"
    )]
    TooSlow {
        /// Number of mounts that were ready.
        done: usize,
        /// Number of mounts in all.
        all: usize,
    },
    /// A call failed.
    #[error("{call}: {}{}", Name(*errno), hint_for_volume_error(*errno))]
    Call {
        /// The call, with its arguments.
        call: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// [Takes](take) several views, until the deadline: a container may have thousands.
pub fn create_all<'v>(
    root: &OwnedFd,
    views: impl ExactSizeIterator<Item = View<'v>>,
    deadline: Deadline,
) -> Result<Vec<DetachedMount>, ViewError> {
    let all = views.len();
    let mut taken = Vec::with_capacity(all);
    for view in views {
        if deadline.is_expired() {
            let done = taken.len();
            return Err(ViewError::TooSlow { done, all });
        }
        taken.push(create(root, view)?);
    }
    Ok(taken)
}

/// Takes a view of the volume whose root is `root`, the root of an attached mount: before Linux
/// 6.18 at the latest, nothing below the root of a detached one can be cloned. A subPath that
/// isn't there is made.
pub fn create(root: &OwnedFd, view: View<'_>) -> Result<DetachedMount, ViewError> {
    let place = subpath::resolve(root, view.subpath, MissingPolicy::Create)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let failed = |call| move |errno| ViewError::Call { call, errno };
    let fd = open_tree(&place.fd, "", flags).map_err(failed("open_tree(volume, CLONE)"))?;
    // A sandbox with rootfsPropagation `shared` has the volume shared, where the delegate sets that
    // after the hooks (crun): what one container mounts in it isn't another's.
    sys::set_propagation_private(&fd).map_err(failed("mount_setattr(MS_PRIVATE)"))?;
    if let Some(user_namespace) = view.ids {
        sys::set_id_mapping(&fd, user_namespace).map_err(ViewError::Ids)?;
    }
    if view.read_only {
        // The delegate does it too, for its own bind. This one may be seen beside it: a
        // workload's hostPath can cover the attach directory.
        sys::add_attributes(&fd, MountAttrFlags::MOUNT_ATTR_RDONLY)
            .map_err(failed("mount_setattr(MOUNT_ATTR_RDONLY)"))?;
    }
    Ok(DetachedMount {
        fd,
        kind: place.kind,
    })
}
