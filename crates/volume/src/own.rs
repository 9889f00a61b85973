//! A container that has its volumes' mounts to itself, because no sandbox of its pod has them.
//! Containers that do share the superblock, for the kernel has one a device.

use std::os::fd::OwnedFd;
use std::path::Path;

use crust_state::ownership::Admission;
use crust_state::record::{UserKind, UserMount, VolumeRecord};

use super::acquire::{NewUser, acquire, live_record, planned};
use super::context::{Context, Locked};
use super::disk;
use super::error::{Cause, VolumeError};
use super::instance::{self, Wanted};
use super::users::{NewContainer, announced};

/// Announces a container that is about to be created, and mounts a volume for it alone. The mount
/// is attached nowhere; it ends with the last process that has a view of it.
pub fn instantiate(
    context: &Context<'_>,
    locked: &Locked,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
    cli: &Path,
) -> Result<OwnedFd, VolumeError> {
    enter(context, locked, container, mounts, |wanted, record| {
        let mount = instance::make(context, wanted, record)?;
        let (volume, device) = (wanted.volume.target(), wanted.plan.device.number());
        tracing::info!(%volume, %device, container = container.id, "mounted for the container");
        wanted.volume.publish_cli(cli)?;
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
    enter(context, locked, container, mounts, |wanted, _| {
        disk::check(wanted.volume.info(), &wanted.plan.device)?;
        match wanted.admission {
            Admission::First => instance::unheld(context, wanted.plan),
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
                let wanted = Wanted {
                    volume: &locked.volume,
                    plan,
                    pod_uid: &pod_uid,
                    admission,
                };
                let mount = instance::make(context, wanted, record)?;
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
    work: impl FnOnce(Wanted<'_>, &mut VolumeRecord) -> Result<T, Cause>,
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
                let wanted = Wanted {
                    volume,
                    plan,
                    pod_uid: container.pod_uid,
                    admission,
                };
                work(wanted, record)
            },
        )
    };
    entered().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}
