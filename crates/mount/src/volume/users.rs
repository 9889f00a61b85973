//! Containers as users of a volume: announced before the delegate runs, real once they exist.

use crust_state::record::{User, UserKind, UserMount};
use crust_state::{Process, TargetPath};

use super::error::{Cause, VolumeError};
use super::{Context, Locked};

/// A container that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewContainer<'a> {
    /// Its id.
    pub id: &'a str,
    /// The sandbox that it joins.
    pub sandbox: &'a str,
    /// The pod.
    pub pod_uid: &'a str,
}

/// Enters a container whose create runs. The process is this one, which becomes the delegate: if
/// it ends and the container was never published, the entry means nothing.
pub fn begin(
    locked: &Locked,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<(), VolumeError> {
    let begun = || -> Result<_, Cause> {
        let process = Process::current().map_err(|source| Cause::Process {
            pid: std::process::id().cast_signed(),
            source,
        })?;
        let Some(mut record) = locked.volume.record()? else {
            return Err(Cause::NotInUse);
        };
        record.forget_the_dead(Process::is_alive);
        record.add(User {
            kind: UserKind::Pending,
            id: container.id.to_owned(),
            sandbox: container.sandbox.to_owned(),
            pod_uid: container.pod_uid.to_owned(),
            process,
            mounts,
        });
        Ok(locked.volume.write_record(&record)?)
    };
    begun().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
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
        let pending = record.users.iter_mut().find(|user| user.id == id);
        let Some(user) = pending else {
            return Err(Cause::NotPending(id.to_owned()));
        };
        user.kind = UserKind::Container;
        user.process = process;
        Ok(locked.volume.write_record(&record)?)
    };
    published().map_err(|cause| VolumeError::new(target, cause))
}
