//! The users of a volume. A container is announced before the delegate runs, and published once it exists; it is
//! released when it has ended, and so is a sandbox. Each release can be repeated, and none has to happen: the next
//! create or unstage finds what was missed, because a dead process is no user.

use crust_blockfs::DeviceNumber;
use crust_state::record::{User, UserKind, UserMount, VolumeRecord};
use crust_state::{Process, TargetPath, Volume};

use super::context::{Context, LockedVolume};
use super::error::{Cause, VolumeError};
use crate::propagated_mounts::{self, CopyCleanup};
use crust_blockfs::device_mounts::DeviceMounts;

/// A container that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewContainer<'a> {
    /// Its id.
    pub id: &'a str,
    /// The sandbox that it joins; its own id where there is none.
    pub sandbox: &'a str,
    /// The pod, or what stands for one.
    pub pod_uid: &'a str,
    /// The SELinux label that its volumes' files are to have, on a host that enforces.
    pub label: Option<&'a str>,
    /// The mounts of the namespace that its delegate runs in, as they were before; `None` where the
    /// delegate isn't given the volume as a mount.
    pub mounts_before: Option<&'a DeviceMounts>,
}

/// Records a container whose create is running as a user of a volume that its sandbox has.
pub fn announce(
    context: &Context<'_>,
    locked: &LockedVolume,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<(), VolumeError> {
    let begun = || -> Result<_, Cause> {
        let Some(mut record) = locked.volume.record()? else {
            return Err(Cause::NotInUse);
        };
        record.retain_live(Process::is_alive);
        record.add(pending_user(context, &record, container, mounts)?);
        Ok(locked.volume.write_record(&record)?)
    };
    begun().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

/// A container whose create runs, as a user. The process is this one, which becomes the delegate:
/// if it ends and the container was never published, the entry means nothing.
pub(super) fn pending_user(
    context: &Context<'_>,
    record: &VolumeRecord,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<User, Cause> {
    // The delegate would refuse it too, but by then this entry would stand for that one.
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
    let lent = context.config.attach_directory();
    let others = match container.mounts_before {
        Some(before) => propagated_mounts::mount_ids(before, record.device, &lent),
        None => Vec::new(),
    };
    Ok(User {
        kind: UserKind::Pending,
        id: container.id.to_owned(),
        sandbox: container.sandbox.to_owned(),
        pod_uid: container.pod_uid.to_owned(),
        process,
        mounts,
        other_mounts: others,
    })
}

/// Makes an announced container a real user: it exists, and `pid` is its first process.
pub fn publish(
    context: &Context<'_>,
    target: &TargetPath,
    id: &str,
    pid: i32,
) -> Result<(), VolumeError> {
    let published = || -> Result<_, Cause> {
        let Some(locked) = context.lock_volume(target)? else {
            return Err(Cause::NotStaged(target.clone()));
        };
        let process = Process::from_pid(pid).map_err(|source| Cause::Process { pid, source })?;
        let mut record = locked.volume.record()?.ok_or(Cause::NotInUse)?;
        if !record.publish(id, process) {
            return Err(Cause::NotPending(id.to_owned()));
        }
        Ok(locked.volume.write_record(&record)?)
    };
    published().map_err(|cause| VolumeError::new(target, cause))
}

/// Fails where a volume was mounted on the host while a container is created that was announced.
///
/// Copies of the container's own mounts are an error although they are unmounted: the config is planned
/// so that there are none, but a link in what the container shares with the host can lead there. A
/// mount of somebody else's is an error because the delegate might have made it in a way that hides
/// where it is from; it is left alone.
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
        if let Some(copy) = copies.remaining(record.device) {
            return Err(Cause::LeftOnHost { copy });
        }
        if let Some(place) = copies.unmounted_at(record.device) {
            let mount_point = place.to_owned();
            return Err(Cause::Propagated { mount_point });
        }
        match copies.foreign_mount(record.device, &pending.other_mounts) {
            Some(place) => Err(Cause::ForeignMount {
                mount_point: place.to_owned(),
            }),
            None => Ok(()),
        }
    };
    checked().map_err(|cause| VolumeError::new(target, cause))
}

/// Takes back what [`announce`] announced: the container won't be created. An entry of somebody else
/// for the same id stays.
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

/// Whether somebody who lives has a volume, or may.
pub(super) fn has_users(volume: &Volume) -> bool {
    match volume.record() {
        Ok(Some(record)) => record.users.iter().any(|user| user.process.is_alive()),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Whether a live container has a volume of a device.
#[must_use]
pub fn uses_device(context: &Context<'_>, id: &str, device: DeviceNumber) -> bool {
    let volumes = context.state.volumes_on_device(device).unwrap_or_default();
    volumes.iter().any(|target| {
        let record = context.crust.record(target).ok().flatten();
        let user = record
            .as_ref()
            .and_then(|it| it.user(UserKind::Container, id));
        user.is_some_and(|user| user.process.is_alive())
    })
}

/// Removes a container or sandbox that has ended from the volume's users, and all others that are dead. The record and
/// `runtime-cli` are removed with the last user.
///
/// The volume stays on its device's list of owners until it is unstaged: the kernel may need a
/// moment longer to let the device go.
pub fn release(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), VolumeError> {
    forget(context, target, id).map_err(|cause| VolumeError::new(target, cause))
}

fn forget(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), Cause> {
    let Some(locked) = context.lock_volume(target)? else {
        return Ok(());
    };
    let Some(mut record) = locked.volume.record()? else {
        return Ok(());
    };
    for kind in [UserKind::Sandbox, UserKind::Container, UserKind::Pending] {
        record.remove(kind, id);
    }
    record.retain_live(Process::is_alive);
    Ok(locked.volume.write_record(&record)?)
}

/// Forgets a sandbox that has ended: its record, and its hold on volumes, those mounted later by
/// a container's create too. Containers with a pid namespace of their own live on and keep
/// theirs. Goes on after an error and gives back all of them.
#[must_use]
pub fn release_sandbox(context: &Context<'_>, id: &str) -> Vec<VolumeError> {
    let mut errors = Vec::new();
    for target in volumes(context, id, &mut errors) {
        // Read without the lock: another pod's volume may be locked for minutes.
        let record = context.crust.record(&target);
        if matches!(&record, Ok(Some(record)) if record.user(UserKind::Sandbox, id).is_some()) {
            errors.extend(release(context, &target, id).err());
        }
    }
    if let Err(error) = context.state.remove_sandbox(id) {
        errors.push(VolumeError::of_sandbox(id, error));
    }
    errors
}

/// Returns every volume on the node that was mounted since it was staged.
fn volumes(context: &Context<'_>, id: &str, errors: &mut Vec<VolumeError>) -> Vec<TargetPath> {
    let devices = context
        .state
        .devices_with_volumes()
        .unwrap_or_else(|error| {
            errors.push(VolumeError::of_sandbox(id, error));
            Vec::new()
        });
    let mut volumes = Vec::new();
    for device in devices {
        match context.state.volumes_on_device(device) {
            Ok(list) => volumes.extend(list),
            // Whose volumes they are can't be told; the sandbox's dead process is no user anyhow.
            Err(error) => tracing::warn!("{error}"),
        }
    }
    volumes
}

/// Returns the record of a volume with its live users; `None` where there are none.
pub(super) fn live_record(volume: &Volume) -> Result<Option<VolumeRecord>, Cause> {
    let Some(mut record) = volume.record()? else {
        return Ok(None);
    };
    record.retain_live(Process::is_alive);
    Ok(Some(record).filter(|record| !record.users.is_empty()))
}

/// Fails if a user on the record lives.
pub(super) fn check_no_live_user(mut record: VolumeRecord) -> Result<(), Cause> {
    record.retain_live(Process::is_alive);
    match record.users.first() {
        Some(user) => Err(Cause::in_use(user)),
        None => Ok(()),
    }
}
