//! Mounts of volumes that came out of a container: made on a mount that the host shares, they are on
//! the host as well.
//!
//! Such a mount is known by its master. What the delegate binds is a slave of a mount that only the
//! transient namespace has ([`AttachDirectory::cover_with_slaves`](crate::attach::AttachDirectory::cover_with_slaves)), and so is every
//! copy of it. Somebody else's mount of the same device never is, whenever it appears: it is left alone.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crust_blockfs::{Deadline, DeviceNumber, openat2};
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crust_blockfs::device_mounts::{DeviceMount, DeviceMounts};
use crust_blockfs::device_mounts::{is_on, mount_id};
use crust_blockfs::errno::Name;
use crust_blockfs::mountinfo::{Mount, MountInfo, MountInfoError};

/// Returns the ids of a device's mounts, except those below `lent`, where the delegate finds the volumes.
/// Before the delegate runs they are somebody else's.
#[must_use]
pub fn mount_ids(mounts: &DeviceMounts, device: DeviceNumber, lent: &Path) -> Vec<u32> {
    let (_, others) = mounts_of(mounts, device, lent);
    others.iter().map(|mount| mount.id).collect()
}

/// Copies of a container's volumes on the host, and what became of them.
#[derive(Debug)]
pub struct CopyCleanup {
    unmounted: Vec<Mount>,
    /// Copies that are still there, each with the reason.
    left: Vec<(Mount, RemainingReason)>,
    /// The mounts of this namespace afterwards.
    mounts: DeviceMounts,
    lent: PathBuf,
}

/// A copy of a container's volume that stays mounted on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingCopy {
    /// The path that it is mounted at.
    pub mount_point: PathBuf,
    /// The reason that it wasn't unmounted for.
    pub reason: RemainingReason,
}

/// The reason why a copy wasn't unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemainingReason {
    /// Another mount is on it, which would be unmounted with it.
    #[error("something else is mounted on it")]
    Occupied,
    /// Its mount point's path leads to another mount, or nowhere.
    #[error(
        "its path doesn't lead to it: something is mounted over a directory above it, or such a directory was renamed"
    )]
    Hidden,
    /// A system call failed.
    #[error("{call}: {}", Name(*errno))]
    Call {
        /// The call, by the name that strace shows.
        call: &'static str,
        /// The error that the kernel returned.
        errno: Errno,
    },
}

/// Error of unmounting the copies.
#[derive(Debug, thiserror::Error)]
pub enum UnmountCopiesError {
    /// The mounts can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// There are more copies than there is time for.
    #[error(
        "umount2({}): the time for the hook was over with {left} copies of the container's volumes still mounted \
         on the host; hint: give the container fewer mounts of volumes, and unmount what is left there", place.display()
    )]
    TooSlow {
        /// Mount point of one of them.
        place: PathBuf,
        /// Number of copies that are left.
        left: usize,
    },
}

/// Unmounts the copies of all mounts below `lent` in this namespace, and so wherever they propagated
/// to, until the deadline. The caller is in the namespace that the delegate runs in.
///
/// A copy on which something else is mounted stays: whoever mounted that would lose it.
pub fn unmount_copies(lent: &Path, deadline: Deadline) -> Result<CopyCleanup, UnmountCopiesError> {
    let lent = lent.to_owned();
    let mut unmounted = Vec::new();
    // One may lie over another, and one that is unmounted takes its peers along.
    loop {
        let table = MountInfo::of_thread()?;
        let remaining = copies(&table, &lent)?;
        let occupied = occupied(&table, &remaining)?;
        let (mut gone, mut staying) = (Vec::new(), Vec::new());
        for copy in remaining.iter().rev() {
            if occupied.contains(&copy.id) {
                staying.push((copy.clone(), RemainingReason::Occupied));
                continue;
            }
            if deadline.is_expired() {
                return Err(UnmountCopiesError::TooSlow {
                    place: copy.mount_point.clone(),
                    left: remaining.len() - gone.len(),
                });
            }
            match unmount_copy(copy) {
                Ok(()) => gone.push(copy.clone()),
                Err(reason) => staying.push((copy.clone(), reason)),
            }
        }
        if gone.is_empty() {
            staying.reverse();
            let mounts = DeviceMounts::from_table(&table)?;
            return Ok(CopyCleanup {
                unmounted,
                left: staying,
                mounts,
                lent,
            });
        }
        unmounted.extend(gone);
    }
}

impl CopyCleanup {
    /// Returns where a device's copies were that are unmounted.
    #[must_use]
    pub fn unmounted_at(&self, device: DeviceNumber) -> Option<&Path> {
        let found = self.unmounted.iter().find(|mount| is_on(mount, device));
        found.map(|mount| &*mount.mount_point)
    }

    /// Returns a copy of a device's that wasn't unmounted.
    #[must_use]
    pub fn remaining(&self, device: DeviceNumber) -> Option<RemainingCopy> {
        let found = self.left.iter().find(|(mount, _)| is_on(mount, device));
        found.map(|(mount, reason)| RemainingCopy {
            mount_point: mount.mount_point.clone(),
            reason: *reason,
        })
    }

    /// Returns where a device is mounted by somebody else, of whose mount nothing is among the ids
    /// `before`; `None` where the delegate isn't given the device as a mount, and so can't have
    /// copied it.
    #[must_use]
    pub fn foreign_mount(&self, device: DeviceNumber, before: &[u32]) -> Option<&Path> {
        let (given, others) = mounts_of(&self.mounts, device, &self.lent);
        let mut new = others.into_iter().filter(|it| !before.contains(&it.id));
        let new = new.find(|it| !self.left.iter().any(|(left, _)| left.id == it.id));
        let new = new.filter(|_| !given.is_empty());
        new.map(|it| it.mount_point.as_path())
    }
}

/// A device's mounts below `lent`, and all others.
fn mounts_of<'m>(
    mounts: &'m DeviceMounts,
    device: DeviceNumber,
    lent: &Path,
) -> (Vec<&'m DeviceMount>, Vec<&'m DeviceMount>) {
    let mounts = mounts.on(device).iter();
    mounts.partition(|mount| mount.mount_point.starts_with(lent))
}

/// The slaves, outside `lent`, of the mounts that stand in it.
fn copies(table: &MountInfo, lent: &Path) -> Result<Vec<Mount>, MountInfoError> {
    let within = table.select(|line| line.is_within(lent))?;
    let at = within.iter().filter(|mount| mount.mount_point == lent);
    let holders: HashSet<u32> = at.map(|mount| mount.id).collect();
    // Of those that stand directly in it: nobody but runcrust can have put them there.
    let given = within.iter().filter(|it| holders.contains(&it.parent));
    let groups: HashSet<u32> = given.filter_map(|it| it.propagation.shared).collect();
    table.select(|line| {
        let master = line.propagation.master;
        master.is_some_and(|master| groups.contains(&master)) && !line.is_within(lent)
    })
}

/// Returns the ids of the mounts on which anything but a copy is mounted, directly or on what is mounted
/// there. Most containers have no copies, and then nothing is looked for.
fn occupied(table: &MountInfo, copies: &[Mount]) -> Result<HashSet<u32>, MountInfoError> {
    if copies.is_empty() {
        return Ok(HashSet::new());
    }
    Ok(occupied_in(&table.select(|_| true)?, copies))
}

fn occupied_in(all: &[Mount], copies: &[Mount]) -> HashSet<u32> {
    let parents: HashMap<u32, u32> = all.iter().map(|mount| (mount.id, mount.parent)).collect();
    let copies: HashSet<u32> = copies.iter().map(|copy| copy.id).collect();
    let mut occupied = HashSet::new();
    for mount in all.iter().filter(|mount| !copies.contains(&mount.id)) {
        let mut above = Some(mount.parent);
        // What is above one that is known is known as well.
        while let Some(id) = above.filter(|id| occupied.insert(*id)) {
            above = parents.get(&id).copied();
        }
    }
    occupied
}

fn unmount_copy(mount: &Mount) -> Result<(), RemainingReason> {
    let failed = |call| move |errno| RemainingReason::Call { call, errno };
    let root = open(mount).map_err(failed("openat2"))?;
    let root = root.ok_or(RemainingReason::Hidden)?;
    // By its descriptor: the directories above it may be a tenant's. Without MNT_DETACH the
    // descriptor would keep it busy.
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    unmount(path, UnmountFlags::DETACH).map_err(failed("umount2"))
}

/// Opens a mount's root; `None` where its mount point leads to another one.
fn open(mount: &Mount) -> Result<Option<OwnedFd>, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place: &Path = &mount.mount_point;
    match openat2::open(CWD, place, OFlags::PATH, resolve) {
        Ok(root) => Ok((mount_id(&root) == Some(mount.id)).then_some(root)),
        // What is there now is of what was below it.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crust_blockfs::mountinfo::parse;

    #[test]
    fn a_mount_is_occupied_by_anything_on_it_but_copies() {
        // Ids and parents; the copies are those from 10 on.
        let mounts = |pairs: &[[u32; 2]]| {
            let lines = pairs
                .iter()
                .map(|[id, parent]| format!("{id} {parent} 7:1 / /{id} rw - ext4 /dev/loop1 rw\n"));
            parse(lines.collect::<String>().as_bytes()).unwrap()
        };
        for (pairs, expected) in [
            (&[[1, 1], [10, 1], [11, 1]][..], &[][..]),
            (&[[1, 1], [10, 1], [11, 10], [12, 11]], &[]),
            (&[[1, 1], [10, 1], [2, 10], [11, 1]], &[10]),
            (
                &[[1, 1], [10, 1], [11, 10], [12, 11], [2, 12], [13, 11]],
                &[10, 11, 12],
            ),
            // Another's mount between two copies.
            (&[[1, 1], [10, 1], [2, 10], [11, 2]], &[10]),
            // The parent of the root isn't in the table, and the order is any.
            (&[[3, 11], [11, 10], [10, 1], [1, 900]], &[10, 11]),
        ] {
            let all = mounts(pairs);
            let copies: Vec<Mount> = all.iter().filter(|it| it.id >= 10).cloned().collect();
            let occupied = occupied_in(&all, &copies);
            let mut found: Vec<u32> = copies.iter().map(|copy| copy.id).collect();
            found.retain(|id| occupied.contains(id));
            found.sort_unstable();
            assert_eq!(found, expected, "{pairs:?}");
        }
    }
}
