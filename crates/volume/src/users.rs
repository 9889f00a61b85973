//! Records the users of a volume. A container is a pending user while its create runs, is confirmed when it exists, and
//! is released when it has ended. Sandboxes are released too. A release can be repeated, and can be missed: a dead
//! process doesn't count as a user, so that the next create or unstage corrects the record.

use crust_blockfs::DeviceNumber;
use crust_state::record::{User, UserKind, UserMount, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Process, TargetPath, Volume};

use super::context::{Context, LockedVolume};
use super::error::{Cause, VolumeError};
use crate::propagated_mounts::{self, CopyCleanup};
use crust_blockfs::device_mounts::DeviceMounts;

/// A container that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewContainer<'a> {
    pub id: &'a str,
    /// The id of the sandbox that it joins, or its own id if it joins none.
    pub sandbox: &'a str,
    /// The uid of its pod, or the identifier used for a container without a pod.
    pub pod_uid: &'a str,
    /// The SELinux label for its volumes' files; `None` if the host doesn't enforce a policy.
    pub label: Option<&'a str>,
    /// The mounts of the transient namespace before the delegate runs. `None` if the delegate isn't given the volume as
    /// a mount.
    pub mounts_before: Option<&'a DeviceMounts>,
}

/// Adds a pending user to the record of a volume that is mounted in the container's sandbox.
pub fn add_pending(
    context: &Context<'_>,
    locked: &LockedVolume,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<(), VolumeError> {
    let added = || -> Result<_, Cause> {
        let Some(mut record) = locked.volume.record()? else {
            return Err(Cause::NotInUse);
        };
        record.retain_live(Process::is_alive);
        record.add(pending_user(context, &record, container, mounts)?);
        Ok(locked.volume.write_record(&record)?)
    };
    added().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

/// Returns the pending user for a container. The user's process is this process, which becomes the delegate. If it ends
/// before the user is confirmed, the user is stale.
pub(super) fn pending_user(
    context: &Context<'_>,
    record: &VolumeRecord,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<User, Cause> {
    // The delegate would refuse an id in use too, but only after this user had replaced the other one in the record.
    for kind in [UserKind::Container, UserKind::Pending] {
        if let Some(other) = record.user(kind, container.id) {
            let (id, pid) = (other.id.clone(), other.process.pid);
            return Err(Cause::Exists { id, pid });
        }
    }
    let process = Process::current().map_err(|source| Cause::Process {
        pid: std::process::id().cast_signed(),
        source,
    })?;
    let attach_directory = context.config.attach_directory();
    let other_mounts = match container.mounts_before {
        Some(mounts) => record.backing.device().map_or_else(Vec::new, |device| {
            propagated_mounts::mount_ids(mounts, device, &attach_directory)
        }),
        None => Vec::new(),
    };
    Ok(User {
        kind: UserKind::Pending,
        id: container.id.to_owned(),
        sandbox: container.sandbox.to_owned(),
        pod_uid: container.pod_uid.to_owned(),
        process,
        mounts,
        other_mounts,
    })
}

/// Turns a pending user into a container, because the container exists now. `pid` is its first process.
pub fn confirm(
    context: &Context<'_>,
    target: &TargetPath,
    id: &str,
    pid: i32,
) -> Result<(), VolumeError> {
    let confirmed = || -> Result<_, Cause> {
        let Some(locked) = context.lock_volume(target)? else {
            return Err(Cause::NotStaged(target.clone()));
        };
        let process = Process::from_pid(pid).map_err(|source| Cause::Process { pid, source })?;
        let mut record = locked.volume.record()?.ok_or(Cause::NotInUse)?;
        if !record.confirm(id, process) {
            return Err(Cause::NotPending(id.to_owned()));
        }
        Ok(locked.volume.write_record(&record)?)
    };
    confirmed().map_err(|cause| VolumeError::new(target, cause))
}

/// Fails if a volume was mounted on the host while a pending user of it was being created.
///
/// Copies of the container's own mounts are an error even if they have been unmounted. The plan avoids them, but a
/// symbolic link in a directory that the container shares with the host can lead to a shared mount. A foreign mount is
/// an error too, because the delegate might have made it in a way that hides its origin; it is left alone.
pub fn check_host_mounts(
    context: &Context<'_>,
    copies: &CopyCleanup,
    target: &TargetPath,
    id: &str,
) -> Result<(), VolumeError> {
    let checked = || -> Result<_, Cause> {
        let Some(locked) = context.lock_volume(target)? else {
            return Ok(());
        };
        let record = locked.volume.record()?;
        let Some(record) = record else { return Ok(()) };
        let Some(pending) = record.user(UserKind::Pending, id) else {
            return Ok(());
        };
        let is_own = |mount: &_| record.is_mount(mount);
        if let Some(copy) = copies.remaining(&is_own) {
            return Err(Cause::LeftOnHost { copy });
        }
        if let Some(mount_point) = copies.unmounted_mount_point(&is_own) {
            let mount_point = mount_point.to_owned();
            return Err(Cause::Propagated { mount_point });
        }
        // Other pods' drivers mount the same share at any time.
        let foreign = record.backing.device();
        let foreign = foreign.and_then(|it| copies.foreign_mount(it, &pending.other_mounts));
        match foreign {
            Some(mount_point) => Err(Cause::ForeignMount {
                mount_point: mount_point.to_owned(),
            }),
            None => Ok(()),
        }
    };
    checked().map_err(|cause| VolumeError::new(target, cause))
}

/// Removes a pending user that this process [added](add_pending), because the container won't be created. A pending
/// user with the same id and another process stays.
pub fn withdraw(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), VolumeError> {
    let withdrawn = || -> Result<_, Cause> {
        let Some(locked) = context.lock_volume(target)? else {
            return Ok(());
        };
        let Some(mut record) = locked.volume.record()? else {
            return Ok(());
        };
        let pid = std::process::id().cast_signed();
        let pending = record.user(UserKind::Pending, id);
        if pending.is_none_or(|user| user.process.pid != pid) {
            return Ok(());
        }
        record.remove(UserKind::Pending, id);
        Ok(locked.volume.write_record(&record)?)
    };
    withdrawn().map_err(|cause| VolumeError::new(target, cause))
}

/// Returns true if a volume has a live user, or if its record can't be read.
pub(super) fn may_have_users(volume: &Volume) -> bool {
    match volume.record() {
        Ok(Some(record)) => record.users.iter().any(|user| user.process.is_alive()),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Returns true if a live container uses a volume on a device. Returns false if the records can't be read.
#[must_use]
pub fn uses_device(context: &Context<'_>, id: &str, device: DeviceNumber) -> bool {
    let volumes = context.state.volumes_on(device.into()).unwrap_or_default();
    volumes.iter().any(|target| {
        let record = context.crust.record(target).ok().flatten();
        let user = record
            .as_ref()
            .and_then(|it| it.user(UserKind::Container, id));
        user.is_some_and(|user| user.process.is_alive())
    })
}

/// Removes a container or sandbox that has ended from the volume's users, together with all users whose process has
/// ended. The record and `runtime-cli` are removed with the last user.
///
/// A user with this id whose process lives is a newer container, and stays: if the delegate is killed, its hook runs on,
/// perhaps until the container has been created again.
///
/// The volume stays in its device's list of owners until it is unstaged, because the kernel may release the device only
/// after the processes have ended.
pub fn release(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), VolumeError> {
    try_release(context, target, id).map_err(|cause| VolumeError::new(target, cause))
}

fn try_release(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), Cause> {
    let Some(locked) = context.lock_volume(target)? else {
        return Ok(());
    };
    let Some(mut record) = locked.volume.record()? else {
        return Ok(());
    };
    // The process of a pending user is the delegate, which runs this hook after a failed create.
    record.remove(UserKind::Pending, id);
    record.retain_live(Process::is_alive);
    Ok(locked.volume.write_record(&record)?)
}

/// Removes a sandbox that has ended from the users of all its volumes, and removes its record.
///
/// Containers of the pod with a pid namespace of their own may still run, and stay users. Continues after an error, and
/// returns all errors.
#[must_use]
pub fn release_sandbox(context: &Context<'_>, id: &str) -> Vec<VolumeError> {
    let mut errors = Vec::new();
    for target in owned_volumes(context, id, &mut errors) {
        // Read without the lock first, because another pod's volume may be locked for minutes.
        let record = context.crust.record(&target);
        if matches!(&record, Ok(Some(record)) if record.user(UserKind::Sandbox, id).is_some()) {
            errors.extend(release(context, &target, id).err());
        }
    }
    let is_ended = |record: &SandboxRecord| !record.process.is_alive();
    if let Err(error) = context.state.remove_sandbox_if(id, is_ended) {
        errors.push(VolumeError::for_sandbox(id, error));
    }
    errors
}

/// Returns all volumes on the node that have been mounted since they were staged.
fn owned_volumes(
    context: &Context<'_>,
    id: &str,
    errors: &mut Vec<VolumeError>,
) -> Vec<TargetPath> {
    let backings = context
        .state
        .backings_with_volumes()
        .unwrap_or_else(|error| {
            errors.push(VolumeError::for_sandbox(id, error));
            Vec::new()
        });
    let mut volumes = Vec::new();
    for backing in backings {
        match context.state.volumes_on(backing) {
            Ok(list) => volumes.extend(list),
            // The sandbox's users on unknown volumes are stale anyway, because its process has ended.
            Err(error) => tracing::warn!("{error}"),
        }
    }
    volumes
}

/// Returns the record of a volume with its live users; `None` if it has none.
pub(super) fn live_record(volume: &Volume) -> Result<Option<VolumeRecord>, Cause> {
    let Some(mut record) = volume.record()? else {
        return Ok(None);
    };
    record.retain_live(Process::is_alive);
    Ok(Some(record).filter(|record| !record.users.is_empty()))
}

pub(super) fn check_no_live_user(mut record: VolumeRecord) -> Result<(), Cause> {
    record.retain_live(Process::is_alive);
    match record.users.first() {
        Some(user) => Err(Cause::in_use(user)),
        None => Ok(()),
    }
}
