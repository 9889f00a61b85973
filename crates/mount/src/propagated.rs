//! Mounts of a volume that came out of a container: made on a mount that the host shares, they are on
//! the host as well.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crust_state::DeviceNumber;
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::beneath;
use crate::errno::Name;
use crate::mountinfo::{self, Mount, MountInfoError};
use crate::origin::{is_on, mount_id};

/// Why it isn't known, or wasn't taken back.
#[derive(Debug, thiserror::Error)]
pub enum PropagatedError {
    /// Somebody's mounts can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// It is still there.
    #[error("umount2({}): {}; hint: unmount it by hand", place.display(), Name(*errno))]
    Stays {
        /// Where.
        place: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// Unmounts what of a device's file system came into this namespace from process `pid`'s, and
/// with it from wherever else it came to; its places here.
///
/// The container's mount and what came of it are peers: by that they are told from a mount that
/// somebody else made of the device. `lent` is where the delegate found it, in this namespace
/// alone.
pub fn take_back(
    pid: i32,
    device: DeviceNumber,
    lent: &Path,
) -> Result<Vec<PathBuf>, PropagatedError> {
    let there = mountinfo::read(pid)?;
    let groups = there.iter().filter(|mount| is_on(mount, device));
    let groups: Vec<u32> = groups
        .filter_map(|mount| mount.propagation.shared)
        .collect();
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let mut places = Vec::new();
    for mount in mountinfo::read_own()? {
        if mount.mount_point.starts_with(lent) {
            continue;
        }
        let group = mount.propagation.shared;
        if group.is_some_and(|group| groups.contains(&group)) && is_on(&mount, device) {
            take_away(&mount).map_err(|errno| PropagatedError::Stays {
                place: mount.mount_point.clone(),
                errno,
            })?;
            places.push(mount.mount_point);
        }
    }
    Ok(places)
}

fn take_away(mount: &Mount) -> Result<(), Errno> {
    // One that the one before took along isn't there any more.
    let Some(root) = open(mount)? else {
        return Ok(());
    };
    // By its descriptor: the directories above it may be a tenant's.
    unmount(
        format!("/proc/self/fd/{}", root.as_raw_fd()),
        UnmountFlags::DETACH,
    )
}

fn open(mount: &Mount) -> Result<Option<OwnedFd>, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place: &Path = &mount.mount_point;
    match beneath::open(CWD, place, OFlags::PATH, resolve) {
        Ok(root) => Ok((mount_id(&root) == Some(mount.id)).then_some(root)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
