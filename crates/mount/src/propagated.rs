//! Mounts of a volume that came out of a container: made on a mount that the host shares, they are on
//! the host as well.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crust_state::{DeviceNumber, beneath};
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::errno::Name;
use crate::mountinfo::{Mount, MountInfoError, Table};
use crate::origin::{is_on, may_be_on, mount_id};

/// Why it isn't known, or wasn't taken back.
#[derive(Debug, thiserror::Error)]
pub enum PropagatedError {
    /// The mounts can't be read.
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

/// The mounts of a device's file system in a table, by their ids, but for those below `lent`,
/// where the delegate finds it.
///
/// In one from before the delegate runs these are somebody else's: an administrator who has a look.
pub fn seen(table: &Table, device: DeviceNumber, lent: &Path) -> Result<Vec<u32>, MountInfoError> {
    let others = others(table, device, lent)?;
    Ok(others.iter().map(|mount| mount.id).collect())
}

/// Unmounts those of a table that weren't [`seen`] before, and with each what it is a copy of or copied to,
/// wherever that is; their places here. The table is one of the namespace of then: in another one the
/// same mounts have other ids.
pub fn take_back(
    table: &Table,
    device: DeviceNumber,
    lent: &Path,
    before: &[u32],
) -> Result<Vec<PathBuf>, PropagatedError> {
    let mut came = others(table, device, lent)?;
    came.retain(|mount| !before.contains(&mount.id));
    let mut failed = None;
    // The last one first: one may lie over another.
    for mount in came.iter().rev() {
        if let Err(errno) = take_away(mount) {
            let place = mount.mount_point.clone();
            failed = Some(PropagatedError::Stays { place, errno });
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(came.into_iter().map(|mount| mount.mount_point).collect()),
    }
}

fn others(table: &Table, device: DeviceNumber, lent: &Path) -> Result<Vec<Mount>, MountInfoError> {
    let mut mounts = table.select(|line| may_be_on(line, device))?;
    mounts.retain(|mount| !mount.mount_point.starts_with(lent) && is_on(mount, device));
    Ok(mounts)
}

fn take_away(mount: &Mount) -> Result<(), Errno> {
    // One that another took along isn't there any more.
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
        // What is there now is of what was below it.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}
