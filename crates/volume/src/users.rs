//! Containers as users of a volume: announced before the delegate runs, real once they exist.

use crust_blockfs::DeviceNumber;
use crust_state::record::{User, UserKind, UserMount, VolumeRecord};
use crust_state::{Process, TargetPath, Volume};

use super::context::{Context, Locked};
use super::error::{Cause, VolumeError};
use crate::propagated::{self, Copies};
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
    pub before: Option<&'a DeviceMounts>,
}

/// Enters a container whose create runs, and whose volume its sandbox has.
pub fn begin(
    context: &Context<'_>,
    locked: &Locked,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<(), VolumeError> {
    let begun = || -> Result<_, Cause> {
        let Some(mut record) = locked.volume.record()? else {
            return Err(Cause::NotInUse);
        };
        record.retain_live(Process::is_alive);
        record.add(announced(context, &record, container, mounts)?);
        Ok(locked.volume.write_record(&record)?)
    };
    begun().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

/// A container whose create runs, as a user. The process is this one, which becomes the delegate:
/// if it ends and the container was never published, the entry means nothing.
pub(super) fn announced(
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
    let others = match container.before {
        Some(before) => propagated::seen(before, record.device, &lent),
        None => Vec::new(),
    };
    Ok(User {
        kind: UserKind::Pending,
        id: container.id.to_owned(),
        sandbox: container.sandbox.to_owned(),
        pod_uid: container.pod_uid.to_owned(),
        process,
        mounts,
        others,
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
        let process = Process::of(pid).map_err(|source| Cause::Process { pid, source })?;
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
pub fn check_host(
    context: &Context<'_>,
    copies: &Copies,
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
        if let Some(copy) = copies.left(record.device) {
            return Err(Cause::LeftOnHost { copy });
        }
        if let Some(place) = copies.unmounted(record.device) {
            let place = place.to_owned();
            return Err(Cause::Propagated { place });
        }
        match copies.appeared(record.device, &pending.others) {
            Some(place) => Err(Cause::Appeared {
                place: place.to_owned(),
            }),
            None => Ok(()),
        }
    };
    checked().map_err(|cause| VolumeError::new(target, cause))
}

/// Takes back what [`begin`] announced: the container won't be created. An entry of somebody else
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
pub fn has_device(context: &Context<'_>, id: &str, device: DeviceNumber) -> bool {
    let volumes = context.state.owners_of(device).unwrap_or_default();
    volumes.iter().any(|target| {
        let record = context.crust.record(target).ok().flatten();
        let user = record
            .as_ref()
            .and_then(|it| it.user(UserKind::Container, id));
        user.is_some_and(|user| user.process.is_alive())
    })
}
