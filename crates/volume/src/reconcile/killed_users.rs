//! Ends containers that were killed while their programs waited for a file server.
//!
//! The kernel writes a process's unwritten data to the server when the process ends, and waits for it, even if the
//! process was killed (`nfs_file_flush` of fs/nfs/file.c). If the server doesn't answer, the container never ends, and
//! so its pod. Aborting the requests loses that data, as a crash of the node would. So they are only aborted if the
//! server doesn't answer, and if all containers that use the superblock were killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crust_blockfs::{Deadline, mountinfo, openat2};
use crust_state::record::{User, UserKind, VolumeRecord};
use crust_state::{BackingKey, TargetPath};
use rustix::fs::{CWD, OFlags, ResolveFlags, fstatvfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::ReconcilePass;
use super::report::{RemovalDecision, StateItem};
use crate::error::Cause;
use crate::namespace::MountNamespace;
use crate::server_wait::run_with_timeout;
use crate::volume_mounts;

/// The time that a killed container gets to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a server gets to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which requests are aborted, because each page of unwritten data causes one.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of a container's processes that are searched for its mounts.
const MAX_PROCESSES: usize = 4096;

impl ReconcilePass<'_> {
    /// Ends the killed containers of all shares.
    pub(super) fn killed_users(&mut self) {
        // An error is reported with the owners.
        let backings = self.context.state.backings_with_volumes();
        let shares = backings.unwrap_or_default().into_iter();
        for share in shares.filter(|backing| backing.device().is_none()) {
            if !self.context.deadline.is_expired() {
                self.killed_users_of(share);
            }
        }
    }

    fn killed_users_of(&mut self, share: BackingKey) {
        let volumes = self.context.state.volumes_on(share).unwrap_or_default();
        let read = |target: TargetPath| {
            let record = self.context.crust.record(&target).ok()??;
            Some((target, record))
        };
        let records: Vec<(TargetPath, VolumeRecord)> =
            volumes.into_iter().filter_map(read).collect();
        for (target, record) in &records {
            let killed: Vec<&User> = record.users.iter().filter(|user| is_killed(user)).collect();
            if killed.is_empty() || has_ended(&killed) || answers(record) {
                continue;
            }
            let others = other_users(record, &records);
            for user in killed {
                let item = StateItem::Requests {
                    volume: target.clone(),
                    user: user.clone(),
                };
                let reason = format!(
                    "the container was killed and waits for the server of {}, which doesn't answer",
                    record.backing
                );
                let decision = match others.first() {
                    None => RemovalDecision::Remove(reason),
                    Some(other) => RemovalDecision::Leave(format!(
                        "{reason}; {other} uses the same superblock; hint: restore the server, or stop that {} too",
                        other.owner_noun()
                    )),
                };
                self.settle(item, decision, |_| abort(record, user).map(|()| true));
            }
        }
    }
}

fn is_killed(user: &User) -> bool {
    user.kind == UserKind::Container && user.process.is_exiting()
}

/// Waits for a moment, and returns whether all of the users have ended.
fn has_ended(killed: &[&User]) -> bool {
    let ended = Deadline::after(END_TIMEOUT).poll(|| {
        let ended = killed.iter().all(|user| !user.process.is_exiting());
        Ok::<_, Errno>(ended.then_some(()))
    });
    matches!(ended, Ok(Some(())))
}

/// Returns whether the server answers, or is not the reason for which the users don't end.
fn answers(record: &VolumeRecord) -> bool {
    let asked = record.clone();
    let answer = run_with_timeout(ANSWER_TIMEOUT, move || {
        let mut mounts = volume_mounts::find(&asked);
        mounts
            .next()
            .map(|mounted| fstatvfs(mounted.root).map(drop))
    });
    // Without a mount that can be opened nothing is known; the users are waiting for something.
    !matches!(answer, Ok(None | Some(None)))
}

/// Returns the users of the same superblocks that weren't killed. Sandboxes have no requests of their own.
fn other_users<'r>(
    record: &VolumeRecord,
    records: &'r [(TargetPath, VolumeRecord)],
) -> Vec<&'r User> {
    let shares_superblock = |other: &VolumeRecord| {
        let mut superblocks = other.superblocks.iter();
        superblocks.any(|number| record.superblocks.contains(number))
    };
    let records = records.iter().filter(|(_, other)| shares_superblock(other));
    let users = records.flat_map(|(_, other)| &other.users);
    users
        .filter(|user| user.kind != UserKind::Sandbox && !is_killed(user))
        .filter(|user| user.process.is_alive())
        .collect()
}

/// Aborts the requests of a killed user until it has ended.
fn abort(record: &VolumeRecord, user: &User) -> Result<(), Cause> {
    let (record, user) = (record.clone(), user.clone());
    let aborted = run_with_timeout(ABORT_TIMEOUT * 2, move || {
        Deadline::after(ABORT_TIMEOUT).poll(|| {
            let processes = processes(&record, &user);
            if !processes.into_iter().any(|pid| abort_from(pid, &record)) {
                return Ok(None);
            }
            Ok::<_, Cause>((!user.process.is_exiting()).then_some(()))
        })
    })?;
    match aborted {
        Some(Ok(Some(()))) => Ok(()),
        Some(Err(cause)) => Err(cause),
        Some(Ok(None)) | None => Err(Cause::NotAborted),
    }
}

/// Returns processes whose mount namespaces may have the share: the sandboxes, and the processes of the container. A
/// process that ends has no namespace any more, unless it waits for a file of its own.
fn processes(record: &VolumeRecord, user: &User) -> Vec<i32> {
    let sandboxes = record
        .users
        .iter()
        .filter(|it| it.kind == UserKind::Sandbox);
    let mut processes: Vec<i32> = sandboxes.map(|it| it.process.pid).collect();
    let mut pending = vec![user.process.pid];
    let mut seen = BTreeSet::new();
    while let Some(pid) = pending.pop() {
        if seen.len() < MAX_PROCESSES && seen.insert(pid) {
            processes.push(pid);
            pending.extend(volume_mounts::children(pid));
        }
    }
    processes
}

/// Aborts the requests on the volume's mounts in a process's namespace. Returns false if the namespace has none.
fn abort_from(pid: i32, record: &VolumeRecord) -> bool {
    let Ok(namespace) = MountNamespace::open(pid) else {
        return false;
    };
    let mounts = mountinfo::read(pid).unwrap_or_default();
    let mounts: Vec<_> = mounts
        .into_iter()
        .filter(|it| record.is_mount(it))
        .collect();
    let aborted = namespace.enter(|| {
        let mut mounts = mounts.iter();
        mounts.any(|mount| abort_at(&mount.mount_point))
    });
    aborted.unwrap_or(false)
}

/// Aborts the requests of the superblock at a mount point of the calling thread's namespace.
///
/// `MNT_FORCE` also unmounts a mount that isn't busy (umount2(2)). The descriptor keeps it busy.
fn abort_at(mount_point: &Path) -> bool {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let Ok(_busy) = openat2::open(CWD, mount_point, OFlags::PATH, resolve) else {
        return false;
    };
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    matches!(unmount(mount_point, flags), Ok(()) | Err(Errno::BUSY))
}
