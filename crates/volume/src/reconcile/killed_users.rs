//! Ends containers that were killed while their programs waited for a file server.
//!
//! The kernel writes a process's unwritten data to the server when the process ends, and waits for it, even if the
//! process was killed (`nfs_file_flush` of fs/nfs/file.c). If the server doesn't answer, the container never ends, and
//! so its pod. Aborting its requests loses that data, as a crash of the node would.
//!
//! The kernel can only abort all requests of a superblock. Different directories of a server's file system share one
//! if their options are the same (`nfs_compare_super` of fs/nfs/super.c), also under different names of the server. So
//! requests are aborted only if the server doesn't answer, all containers that use the superblock were killed, and no
//! other mount namespace of the node has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crust_blockfs::mountinfo::{self, Mount};
use crust_blockfs::{Deadline, DeviceNumber, openat2};
use crust_nfs::is_nfs;
use crust_state::TargetPath;
use crust_state::record::{User, UserKind, VolumeRecord};
use rustix::fs::{AtFlags, CWD, OFlags, ResolveFlags, StatxFlags, fstatvfs, stat, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::ReconcilePass;
use super::report::{RemovalDecision, StateItem};
use crate::context::Context;
use crate::error::Cause;
use crate::namespace::MountNamespace;
use crate::server_wait::{ANSWER_TIMEOUT, run_with_timeout};
use crate::{thread, volume_mounts};

/// The time that killed containers get to end by themselves.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a container's requests are aborted, because each page of unwritten data causes one.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of a container's processes that are searched for its mounts.
const MAX_PROCESSES: usize = 4096;

/// The volumes whose servers are being asked. A server that never answers keeps one thread of a daemon for each volume,
/// and not one for each pass.
static ASKED: Mutex<BTreeSet<TargetPath>> = Mutex::new(BTreeSet::new());

type ShareRecords = Vec<(TargetPath, VolumeRecord)>;

/// The number of a mount namespace: device and inode of its file in /proc (namespaces(7)).
type NamespaceId = (u64, u64);

impl ReconcilePass<'_> {
    /// Ends the killed containers of shares whose servers don't answer.
    pub(super) fn killed_users(&mut self) {
        let records = share_records(&self.context);
        let killed: Vec<_> = records
            .iter()
            .flat_map(|(target, record)| {
                record.users.iter().map(move |user| (target, record, user))
            })
            .filter(|(_, _, user)| is_killed(user))
            .collect();
        let users: Vec<&User> = killed.iter().map(|(_, _, user)| *user).collect();
        let deadline = self.context.deadline;
        if killed.is_empty() || have_ended(&users, deadline.at_most(END_TIMEOUT)) {
            return;
        }
        let volumes = killed.iter().map(|(target, record, _)| (*target, *record));
        let unanswered = find_unanswered(volumes.collect(), deadline.at_most(ANSWER_TIMEOUT));
        if unanswered.is_empty() {
            return;
        }
        let other_mounts = find_other_mounts(&records);
        for (target, record, user) in killed {
            if !unanswered.contains(target) || !user.process.is_exiting() || deadline.is_expired() {
                continue;
            }
            let item = StateItem::Requests {
                volume: target.clone(),
                user: user.clone(),
            };
            let reason = format!(
                "the container was killed and waits for the server of {}, which doesn't answer",
                record.backing
            );
            let decision = match find_obstacle(record, &records, &other_mounts) {
                None => RemovalDecision::Remove(reason),
                Some(obstacle) => RemovalDecision::Leave(format!("{reason}; {obstacle}")),
            };
            self.settle(item, decision, |context| abort(context, record, user));
        }
    }
}

/// Returns why the requests of a volume's superblocks must not be aborted, and the next step; `None` if nothing is
/// against it.
fn find_obstacle(
    record: &VolumeRecord,
    records: &[(TargetPath, VolumeRecord)],
    other_mounts: &BTreeMap<DeviceNumber, i32>,
) -> Option<String> {
    if let Some(user) = find_other_user(record, records) {
        let noun = user.owner_noun();
        return Some(format!(
            "{user} uses the same superblock; hint: restore the server, or stop that {noun} too"
        ));
    }
    let mut numbers = record.superblocks.iter();
    let pid = numbers.find_map(|number| other_mounts.get(number))?;
    Some(format!(
        "the mount namespace of process {pid} has the same superblock; hint: restore the server, or unmount the share there"
    ))
}

/// Returns the records of all volumes that are shares.
fn share_records(context: &Context<'_>) -> ShareRecords {
    // An error is reported with the owners.
    let backings = context.state.backings_with_volumes().unwrap_or_default();
    let shares = backings.into_iter().filter(|it| it.device().is_none());
    let volumes = shares.flat_map(|share| context.state.volumes_on(share).unwrap_or_default());
    let read = |target: TargetPath| {
        let record = context.crust.record(&target).ok()??;
        Some((target, record))
    };
    volumes.filter_map(read).collect()
}

fn is_killed(user: &User) -> bool {
    user.kind == UserKind::Container && user.process.is_exiting()
}

/// Waits until all of the users have ended. Returns false after the deadline.
fn have_ended(killed: &[&User], deadline: Deadline) -> bool {
    let ended = deadline.poll(|| {
        let ended = killed.iter().all(|user| !user.process.is_exiting());
        Ok::<_, Errno>(ended.then_some(()))
    });
    matches!(ended, Ok(Some(())))
}

/// Asks the servers of all these volumes at once. Returns the volumes whose server hasn't answered by the deadline, or
/// for which it can't be asked because no mount can be opened.
fn find_unanswered(
    volumes: BTreeMap<&TargetPath, &VolumeRecord>,
    deadline: Deadline,
) -> BTreeSet<TargetPath> {
    let mut unanswered: BTreeSet<TargetPath> = volumes.keys().copied().cloned().collect();
    let (sender, answers) = channel();
    for (target, record) in volumes {
        if !asked().insert(target.clone()) {
            continue;
        }
        let (sender, target, record) = (sender.clone(), target.clone(), record.clone());
        let asking = target.clone();
        let started = thread::spawn(move || {
            let mounted = volume_mounts::find(&record).next();
            let answers = mounted.is_some_and(|mounted| fstatvfs(mounted.root).is_ok());
            asked().remove(&asking);
            // Nobody receives the answer after the deadline.
            let _ = sender.send((asking, answers));
        });
        if started.is_err() {
            asked().remove(&target);
        }
    }
    drop(sender);
    while let Some(remaining) = deadline.remaining().filter(|it| !it.is_zero())
        && let Ok((target, answers)) = answers.recv_timeout(remaining)
    {
        if answers {
            unanswered.remove(&target);
        }
    }
    unanswered
}

fn asked() -> MutexGuard<'static, BTreeSet<TargetPath>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a user of the same superblocks that wasn't killed. Sandboxes have no requests of their own.
fn find_other_user<'r>(
    record: &VolumeRecord,
    records: &'r [(TargetPath, VolumeRecord)],
) -> Option<&'r User> {
    let shares_superblock = |other: &VolumeRecord| {
        let mut superblocks = other.superblocks.iter();
        superblocks.any(|number| record.superblocks.contains(number))
    };
    let records = records.iter().filter(|(_, other)| shares_superblock(other));
    let mut users = records.flat_map(|(_, other)| &other.users);
    users.find(|user| user.kind != UserKind::Sandbox && !is_killed(user) && user.process.is_alive())
}

/// Finds superblocks of these volumes in mount namespaces other than those of their users: a driver's or kubelet's own
/// mounts of the server, for example. Returns a process of such a namespace for each superblock.
fn find_other_mounts(records: &[(TargetPath, VolumeRecord)]) -> BTreeMap<DeviceNumber, i32> {
    let mut seen = user_namespaces(records);
    let numbers: BTreeSet<DeviceNumber> = records
        .iter()
        .flat_map(|(_, record)| record.superblocks.iter().copied())
        .collect();
    let mut found = BTreeMap::new();
    for pid in all_processes() {
        if !namespace_id(pid).is_some_and(|id| seen.insert(id)) {
            continue;
        }
        let mounts = mountinfo::read(pid).unwrap_or_default().into_iter();
        let shares = mounts.filter(|mount| is_nfs(mount.fstype.as_encoded_bytes()));
        let users = shares.filter(|mount| numbers.contains(&mount.device));
        found.extend(users.map(|mount| (mount.device, pid)));
    }
    found
}

/// Returns the mount namespaces of the sandboxes and containers that use these volumes. A pending user's process is in
/// the host's namespace, and the pid of a process that has ended may be that of another one by now.
fn user_namespaces(records: &[(TargetPath, VolumeRecord)]) -> BTreeSet<NamespaceId> {
    let users = records.iter().flat_map(|(_, record)| {
        let users = record.users.iter();
        let users = users.filter(|user| user.kind != UserKind::Pending && user.process.is_alive());
        users.flat_map(move |user| processes(record, user))
    });
    users.filter_map(namespace_id).collect()
}

fn all_processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn namespace_id(pid: i32) -> Option<NamespaceId> {
    let stat = stat(format!("/proc/{pid}/ns/mnt")).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Aborts the requests of a killed user until it has ended. Returns false if another container has the superblock by
/// now.
fn abort(context: &Context<'_>, record: &VolumeRecord, user: &User) -> Result<bool, Cause> {
    let aborted = context.deadline.at_most(ABORT_TIMEOUT).poll(|| {
        if !user.process.is_exiting() {
            return Ok(Some(true));
        }
        if find_other_user(record, &share_records(context)).is_some() {
            return Ok(Some(false));
        }
        let (record, user) = (record.clone(), user.clone());
        let attempted = run_with_timeout(ABORT_TIMEOUT, move || {
            let mut processes = processes(&record, &user).into_iter();
            processes.any(|pid| abort_from(pid, &record))
        });
        attempted.map(|_| None)
    })?;
    aborted.ok_or(Cause::NotAborted)
}

/// Returns processes whose mount namespaces may have the share: the sandboxes, and the processes of the container. A
/// process that ends has no namespace any more, unless it waits for a file of its own.
fn processes(record: &VolumeRecord, user: &User) -> Vec<i32> {
    let sandboxes = record
        .users
        .iter()
        .filter(|it| it.kind == UserKind::Sandbox && it.process.is_alive());
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

/// Aborts the requests on mounts with the volume's superblock in a process's namespace. Returns false if the namespace
/// has none.
fn abort_from(pid: i32, record: &VolumeRecord) -> bool {
    let Ok(namespace) = MountNamespace::open(pid) else {
        return false;
    };
    let mounts = mountinfo::read(pid).unwrap_or_default();
    let mounts: Vec<_> = mounts
        .into_iter()
        .filter(|it| record.has_superblock_of(it))
        .collect();
    let aborted = namespace.enter(|| mounts.iter().any(abort_at));
    aborted.unwrap_or(false)
}

/// Aborts the requests of a mount's superblock. The calling thread is in the mount's namespace.
///
/// `MNT_FORCE` also unmounts a mount that isn't busy (umount2(2)). The descriptor keeps it busy.
fn abort_at(mount: &Mount) -> bool {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let Ok(busy) = openat2::open(CWD, &mount.mount_point, OFlags::PATH, resolve) else {
        return false;
    };
    if !is_root_of(&busy, mount) {
        return false;
    }
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    matches!(
        unmount(&mount.mount_point, flags),
        Ok(()) | Err(Errno::BUSY)
    )
}

/// Returns whether a descriptor is on this mount, and not on one above it. Doesn't ask the server. /proc may be missing
/// in the mount's namespace.
fn is_root_of(fd: &OwnedFd, mount: &Mount) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(fd, c"", flags, StatxFlags::MNT_ID);
    stat.is_ok_and(|stat| stat.stx_mnt_id == u64::from(mount.id))
}

#[cfg(test)]
mod tests {
    use crust_state::Process;
    use crust_state::record::{Superblock, Version};

    use super::*;

    #[test]
    fn only_running_sandboxes_and_containers_have_namespaces() {
        let this = Process::current().unwrap();
        let ended = Process {
            boot_id: "another".into(),
            ..this.clone()
        };
        for (kind, process, is_found) in [
            (UserKind::Container, &this, true),
            (UserKind::Sandbox, &this, true),
            (UserKind::Pending, &this, false),
            (UserKind::Container, &ended, false),
            (UserKind::Sandbox, &ended, false),
        ] {
            let user = User {
                kind,
                id: "c".into(),
                sandbox: "s".into(),
                pod_uid: "p".into(),
                process: process.clone(),
                mounts: Vec::new(),
                other_mounts: Vec::new(),
            };
            let record = VolumeRecord {
                version: Version,
                backing: "srv:/export".parse().unwrap(),
                superblocks: Vec::new(),
                refused_fs_group: None,
                superblock: Superblock {
                    fstype: "nfs4".into(),
                    options: Vec::new(),
                    read_only: false,
                },
                exclusive: false,
                prepared_for: Vec::new(),
                users: vec![user],
            };
            let records = [(TargetPath::new("/pods/a/mount").unwrap(), record)];
            let found = user_namespaces(&records);
            let own = namespace_id(this.pid).unwrap();
            assert_eq!(found.contains(&own), is_found, "{kind:?} {process:?}");
        }
    }
}
