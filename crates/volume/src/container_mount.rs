//! Mounts a volume for one container alone, because no sandbox of its pod has the volume mounted. Several such
//! containers share the superblock, since the kernel has one superblock for each device.

use std::os::fd::OwnedFd;
use std::path::Path;

use crust_state::ownership::DeviceAccess;
use crust_state::record::{UserKind, UserMount, VolumeRecord};

use super::acquire::{NewUser, acquire, plan_for_users};
use super::context::{Context, LockedVolume};
use super::error::{Cause, VolumeError};
use super::mount_holder::MountHolder;
use super::new_mount::{self, NewMount};
use super::users::{NewContainer, live_record, pending_user};

/// Adds a container to the volume's pending users, and mounts the volume for it alone. The returned mount is detached;
/// the file system stays mounted until the last view of it is gone.
pub fn mount_for_container(
    context: &Context<'_>,
    locked: &LockedVolume,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
    cli: &Path,
) -> Result<OwnedFd, VolumeError> {
    acquire_for_container(context, locked, container, mounts, |new, record| {
        let holder = MountHolder {
            cli,
            target: new.volume.target(),
            sandbox_id: container.sandbox,
        };
        let new = NewMount {
            holder: Some(holder),
            ..new
        };
        let mount = new_mount::mount(context, new, record)?;
        let (volume, device) = (new.volume.target(), new.plan.source.backing());
        tracing::info!(%volume, %device, container = container.id, "mounted for the container");
        new.volume.write_runtime_cli(cli)?;
        Ok(mount)
    })
}

/// Adds a container to the volume's pending users. Its hook will mount the volume by [`mount_reserved`].
pub fn reserve(
    context: &Context<'_>,
    locked: &LockedVolume,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
) -> Result<(), VolumeError> {
    acquire_for_container(context, locked, container, mounts, |new, _| {
        new.plan.source.check_staged(new.volume.info())?;
        match new.access {
            DeviceAccess::First => new.plan.source.check_not_held(context),
            DeviceAccess::Joins { .. } => Ok(()),
        }
    })
}

/// Mounts a volume for a container that it was [reserved](reserve) for. The returned mount is detached.
///
/// Must be called once for each volume and container.
pub fn mount_reserved(
    context: &Context<'_>,
    locked: &LockedVolume,
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
        // Plans with the device that the volume was reserved on. The mount compares this device with the staged one.
        let (plan, mut others) = plan_for_users(context.config, &locked.volume, live, label)?;
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
            |plan, access, record| {
                let new = NewMount {
                    volume: &locked.volume,
                    plan,
                    pod_uid: &pod_uid,
                    access,
                    sandbox: None,
                    holder: None,
                };
                let mount = new_mount::mount(context, new, record)?;
                locked.volume.write_runtime_cli(cli)?;
                Ok(mount)
            },
        )
    };
    mounted().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

/// Adds a container to the volume's record as a pending user and runs `work`, as [`acquire`] does.
fn acquire_for_container<T>(
    context: &Context<'_>,
    locked: &LockedVolume,
    container: NewContainer<'_>,
    mounts: Vec<UserMount>,
    work: impl FnOnce(NewMount<'_>, &mut VolumeRecord) -> Result<T, Cause>,
) -> Result<T, VolumeError> {
    let acquired = || -> Result<_, Cause> {
        let volume = &locked.volume;
        let live = live_record(volume)?;
        let (plan, before) = plan_for_users(context.config, volume, live, container.label)?;
        let user = pending_user(context, &before, container, mounts)?;
        acquire(
            context,
            locked,
            plan,
            NewUser {
                user,
                before: &before,
            },
            |plan, access, record| {
                let new = NewMount {
                    volume,
                    plan,
                    pod_uid: container.pod_uid,
                    access,
                    sandbox: None,
                    holder: None,
                };
                work(new, record)
            },
        )
    };
    acquired().map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}
