//! Finds and unmounts copies of a container's volumes on the host. A volume that is mounted on a mount which the
//! container shares with the host propagates to the host.
//!
//! A copy is recognized by its master. The mounts that the delegate binds are slaves of mounts that exist only in the
//! transient namespace (see
//! [`AttachDirectory::cover_with_slaves`](crate::attach::AttachDirectory::cover_with_slaves)), and so is every copy of
//! them. A mount of the same device by another process is never such a slave, and is left alone.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crust_blockfs::{Deadline, DeviceNumber, openat2};
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crust_blockfs::device_mounts::mount_id;
use crust_blockfs::device_mounts::{DeviceMount, DeviceMounts};
use crust_blockfs::errno::Name;
use crust_blockfs::mountinfo::{Mount, MountInfo, MountInfoError};

/// Returns the ids of a device's mounts outside of the attach directory. Before the delegate runs, none of them belongs
/// to the container.
#[must_use]
pub fn mount_ids(mounts: &DeviceMounts, device: DeviceNumber, attach_directory: &Path) -> Vec<u32> {
    let (_, others) = partition_mounts(mounts, device, attach_directory);
    others.iter().map(|mount| mount.id).collect()
}

/// The result of unmounting the copies of a container's volumes on the host.
#[derive(Debug)]
pub struct CopyCleanup {
    unmounted: Vec<Mount>,
    /// The copies that are still mounted, each with the reason.
    remaining: Vec<(Mount, RemainingReason)>,
    /// The mounts of this namespace afterwards.
    mounts: DeviceMounts,
    attach_directory: PathBuf,
}

/// A copy of a container's volume that stays mounted on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingCopy {
    pub mount_point: PathBuf,
    pub reason: RemainingReason,
}

/// The reason why a copy wasn't unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemainingReason {
    /// Another mount is on the copy, and would be unmounted with it.
    #[error("something else is mounted on it")]
    Occupied,
    /// The path of the copy's mount point leads to another mount, or nowhere.
    #[error(
        "its path doesn't lead to it: something is mounted over a directory above it, or such a directory was renamed"
    )]
    Hidden,
    #[error("{call}: {}", Name(*errno))]
    Call {
        /// The call's name as strace shows it.
        call: &'static str,
        errno: Errno,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum UnmountCopiesError {
    /// The mount table can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// The deadline passed before all copies were unmounted.
    #[error(
        "umount2({}): timeout: {remaining} copies of the container's volumes were still mounted on the host at the \
         hook's deadline; hint: give the container fewer mounts of volumes, and unmount the copies on the host",
        mount_point.display()
    )]
    TooSlow {
        /// The mount point of one of the copies.
        mount_point: PathBuf,
        /// The number of copies that are still mounted.
        remaining: usize,
    },
}

/// Unmounts the copies of all mounts in the attach directory, until the deadline. Copies in other namespaces that they
/// propagated to are unmounted with them.
///
/// The caller must be in the transient namespace. A copy on which something else is mounted is kept, because the owner
/// of that mount would lose it.
pub fn unmount_copies(
    attach_directory: &Path,
    deadline: Deadline,
) -> Result<CopyCleanup, UnmountCopiesError> {
    let attach_directory = attach_directory.to_owned();
    let mut unmounted = Vec::new();
    // Repeated, because one copy may be mounted over another, and because an unmount takes the copy's peers along.
    loop {
        let table = MountInfo::read_own()?;
        let present = copies(&table, &attach_directory)?;
        let occupied = occupied(&table, &present)?;
        let (mut gone, mut remaining) = (Vec::new(), Vec::new());
        for copy in present.iter().rev() {
            if occupied.contains(&copy.id) {
                remaining.push((copy.clone(), RemainingReason::Occupied));
                continue;
            }
            if deadline.is_expired() {
                return Err(UnmountCopiesError::TooSlow {
                    mount_point: copy.mount_point.clone(),
                    remaining: present.len() - gone.len(),
                });
            }
            match unmount_copy(copy) {
                Ok(()) => gone.push(copy.clone()),
                Err(reason) => remaining.push((copy.clone(), reason)),
            }
        }
        if gone.is_empty() {
            remaining.reverse();
            let mounts = DeviceMounts::from_table(&table)?;
            return Ok(CopyCleanup {
                unmounted,
                remaining,
                mounts,
                attach_directory,
            });
        }
        unmounted.extend(gone);
    }
}

impl CopyCleanup {
    /// Returns the mount point of a copy of a volume's mount that was unmounted; `None` if no copy was unmounted.
    /// `is_own` recognizes the volume's mounts.
    #[must_use]
    pub fn unmounted_mount_point(&self, is_own: &dyn Fn(&Mount) -> bool) -> Option<&Path> {
        let found = self.unmounted.iter().find(|mount| is_own(mount));
        found.map(|mount| &*mount.mount_point)
    }

    /// Returns a copy of a volume's mount that wasn't unmounted; `None` if all copies were unmounted. `is_own` recognizes
    /// the volume's mounts.
    #[must_use]
    pub fn remaining(&self, is_own: &dyn Fn(&Mount) -> bool) -> Option<RemainingCopy> {
        let found = self.remaining.iter().find(|(mount, _)| is_own(mount));
        found.map(|(mount, reason)| RemainingCopy {
            mount_point: mount.mount_point.clone(),
            reason: *reason,
        })
    }

    /// Returns a mount point at which another process has mounted a device. `before` has the ids of the mounts that the
    /// device had before the delegate ran.
    ///
    /// Returns `None` if the delegate wasn't given the device as a mount, because then it can't have copied the device.
    #[must_use]
    pub fn foreign_mount(&self, device: DeviceNumber, before: &[u32]) -> Option<&Path> {
        let (attached, others) = partition_mounts(&self.mounts, device, &self.attach_directory);
        let mut new = others.into_iter().filter(|it| !before.contains(&it.id));
        let foreign = new.find(|it| !self.remaining.iter().any(|(copy, _)| copy.id == it.id));
        let foreign = foreign.filter(|_| !attached.is_empty());
        foreign.map(|it| it.mount_point.as_path())
    }
}

/// Returns a device's mounts within the attach directory, and all others.
fn partition_mounts<'m>(
    mounts: &'m DeviceMounts,
    device: DeviceNumber,
    attach_directory: &Path,
) -> (Vec<&'m DeviceMount>, Vec<&'m DeviceMount>) {
    let mounts = mounts.on(device).iter();
    mounts.partition(|mount| mount.mount_point.starts_with(attach_directory))
}

/// Returns the slaves of the mounts in the attach directory, except for slaves that are in the attach directory
/// themselves.
fn copies(table: &MountInfo, attach_directory: &Path) -> Result<Vec<Mount>, MountInfoError> {
    let inside = table.select(|line| line.is_within(attach_directory))?;
    let on_directory = inside
        .iter()
        .filter(|mount| mount.mount_point == attach_directory);
    let parents: HashSet<u32> = on_directory.map(|mount| mount.id).collect();
    // Only the mounts directly in the directory count: no process but runcrust can have attached them.
    let attached = inside.iter().filter(|it| parents.contains(&it.parent));
    let groups: HashSet<u32> = attached.filter_map(|it| it.propagation.shared).collect();
    table.select(|line| {
        let master = line.propagation.master;
        master.is_some_and(|master| groups.contains(&master)) && !line.is_within(attach_directory)
    })
}

/// Returns the ids of the mounts on which a mount other than a copy is mounted, directly or on a mount above them.
fn occupied(table: &MountInfo, copies: &[Mount]) -> Result<HashSet<u32>, MountInfoError> {
    // The usual case: without copies, the mount table needn't be read.
    if copies.is_empty() {
        return Ok(HashSet::new());
    }
    Ok(find_occupied(&table.select(|_| true)?, copies))
}

fn find_occupied(all: &[Mount], copies: &[Mount]) -> HashSet<u32> {
    let parents: HashMap<u32, u32> = all.iter().map(|mount| (mount.id, mount.parent)).collect();
    let copies: HashSet<u32> = copies.iter().map(|copy| copy.id).collect();
    let mut occupied = HashSet::new();
    for mount in all.iter().filter(|mount| !copies.contains(&mount.id)) {
        let mut ancestor = Some(mount.parent);
        // The ancestors of a mount that is in the set already are in it too.
        while let Some(id) = ancestor.filter(|id| occupied.insert(*id)) {
            ancestor = parents.get(&id).copied();
        }
    }
    occupied
}

fn unmount_copy(mount: &Mount) -> Result<(), RemainingReason> {
    let failed = |call| move |errno| RemainingReason::Call { call, errno };
    let root = open(mount).map_err(failed("openat2"))?;
    let root = root.ok_or(RemainingReason::Hidden)?;
    // Unmounted by its descriptor, because a tenant may own the directories above it. MNT_DETACH, because the
    // descriptor keeps the mount busy.
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    unmount(path, UnmountFlags::DETACH).map_err(failed("umount2"))
}

/// Opens a mount's root; `None` if the path of its mount point leads to another mount or nowhere.
fn open(mount: &Mount) -> Result<Option<OwnedFd>, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mount_point: &Path = &mount.mount_point;
    match openat2::open(CWD, mount_point, OFlags::PATH, resolve) {
        Ok(root) => Ok((mount_id(&root) == Some(mount.id)).then_some(root)),
        // Another mount hides the copy, and the path doesn't exist in it.
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
        // Pairs of id and parent. The mounts with ids from 10 are copies.
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
            // A foreign mount between two copies.
            (&[[1, 1], [10, 1], [2, 10], [11, 2]], &[10]),
            // The root's parent isn't in the table, and the order is arbitrary.
            (&[[3, 11], [11, 10], [10, 1], [1, 900]], &[10, 11]),
        ] {
            let all = mounts(pairs);
            let copies: Vec<Mount> = all.iter().filter(|it| it.id >= 10).cloned().collect();
            let occupied = find_occupied(&all, &copies);
            let mut found: Vec<u32> = copies.iter().map(|copy| copy.id).collect();
            found.retain(|id| occupied.contains(id));
            found.sort_unstable();
            assert_eq!(found, expected, "{pairs:?}");
        }
    }
}
