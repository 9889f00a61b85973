//! Mounts of a volume for one container alone, because no sandbox of its pod has the volume. Several such containers
//! share the superblock, since the kernel has one for each device.

use std::os::fd::OwnedFd;
use std::path::Path;

use crust_state::ownership::Admission;
use crust_state::record::{UserKind, UserMount, VolumeRecord};

use super::acquire::{NewUser, acquire, planned};
use super::context::{Context, Locked};
use super::error::{Cause, VolumeError};
use super::new_mount::{self, NewMount};
use super::plan::check_disk;
use super::users::{NewContainer, announced, live_record};

/// Announces a container that is about to be created, and mounts a volume for it alone. The mount
/// is attached nowhere; it ends with the last process that has a view of it.
pub fn mount_for_container(
    context: &Context<'_>,
    locked: &Locked,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
    cli: &Path,
) -> Result<OwnedFd, VolumeError> {
    enter(context, locked, container, mounts, |new, record| {
        let mount = new_mount::mount(context, new, record)?;
        let (volume, device) = (new.volume.target(), new.plan.device.number());
        tracing::info!(%volume, %device, container = container.id, "mounted for the container");
        new.volume.publish_cli(cli)?;
        Ok(mount)
    })
}

/// Announces a container that is about to be created, and whose hook will mount the volume.
pub fn reserve(
    context: &Context<'_>,
    locked: &Locked,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<(), VolumeError> {
    enter(context, locked, container, mounts, |new, _| {
        check_disk(new.volume.info(), &new.plan.device)?;
        match new.admission {
            Admission::First => new_mount::check_not_held(context, new.plan),
            Admission::Joins { .. } => Ok(()),
        }
    })
}

/// Mounts a volume for a container that it was [`reserve`]d for, once.
pub fn mount_reserved(
    context: &Context<'_>,
    locked: &Locked,
    id: &str,
    cli: &Path,
    label: Option<&str>,
) -> Result<OwnedFd, VolumeError> {
    let mounted = || -> Result<_, Cause> {
        let live = live_record(&locked.volume)?;
        let user = live
            .as_ref()
            .and_then(|it| it.user(UserKind::Container, id));
        let user = user
            .cloned()
            .ok_or_else(|| Cause::NotPending(id.to_owned()))?;
        // The device that it was reserved with, which the mount compares with what was staged.
        let (plan, mut others) = planned(context.config, &locked.volume, live, label)?;
        others.remove(UserKind::Container, id);
        let pod_uid = user.pod_uid.clone();
        acquire(
            context,
            locked,
            plan,
            NewUser {
                user,
                before: &others,
            },
            |plan, admission, record| {
                let new = NewMount {
                    volume: &locked.volume,
                    plan,
                    pod_uid: &pod_uid,
                    admission,
                };
                let mount = new_mount::mount(context, new, record)?;
                locked.volume.publish_cli(cli)?;
                Ok(mount)
            },
        )
    };
    mounted().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

fn enter<T>(
    context: &Context<'_>,
    locked: &Locked,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
    work: impl FnOnce(NewMount<'_>, &mut VolumeRecord) -> Result<T, Cause>,
) -> Result<T, VolumeError> {
    let entered = || -> Result<_, Cause> {
        let volume = &locked.volume;
        let live = live_record(volume)?;
        let (plan, before) = planned(context.config, volume, live, container.label)?;
        let user = announced(context, &before, container, mounts)?;
        acquire(
            context,
            locked,
            plan,
            NewUser {
                user,
                before: &before,
            },
            |plan, admission, record| {
                let new = NewMount {
                    volume,
                    plan,
                    pod_uid: container.pod_uid,
                    admission,
                };
                work(new, record)
            },
        )
    };
    entered().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}
