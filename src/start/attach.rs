//! Mounts a container's volumes and attaches its views of them in the transient namespace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use crust_blockfs::view::{DetachedMount, View};
use crust_state::TargetPath;
use crust_state::files::Directory;
use crust_state::lock::LockName;
use crust_volume::SandboxRequest;
use crust_volume::attach::{self, AttachDirectory};

use super::CreateCall;
use super::container::UserGuard;
use super::decide::running_sandbox;
use crate::plan::{MountedIn, PlannedMount};

impl CreateCall<'_> {
    /// Mounts and attaches the volumes. Moves this process into the transient namespace.
    pub(super) fn attach_volumes(&self, user: &mut UserGuard<'_, '_>, cli: &Path) -> Result<()> {
        let plan = user.plan;
        let sandbox = running_sandbox(plan)?;
        let ids = plan
            .ids
            .as_ref()
            .map(crust_blockfs::user_namespace::UserNamespace::open);
        let ids = ids.transpose().with_context(|| plan.subject())?.flatten();
        let mut attach_directory = self
            .attach_directory(user)
            .with_context(|| plan.subject())?;
        let (mut done, all) = (0, plan.mounts.len());
        for (target, mounts) in plan.by_volume() {
            let volume = ContainerVolume {
                target,
                mounts: &mounts,
                ids: ids.as_ref(),
            };
            let views = match (&plan.mounted_in, &sandbox) {
                (MountedIn::Sandbox(record), Some(sandbox)) => {
                    let request = SandboxRequest {
                        sandbox,
                        record,
                        cli,
                        label: plan.label(),
                    };
                    mount_in_sandbox(user, volume, request, &mut attach_directory)?
                }
                _ => mount_for_container(user, volume, cli, &mut attach_directory)?,
            };
            for (mount, view) in mounts.iter().zip(&views) {
                if self.deadline.is_expired() {
                    bail!(
                        "{}: timeout: only {done} of the container's {all} mounts of volumes were attached before the \
                         create's deadline; hint: give the container fewer mounts",
                        volume_subject(target)
                    );
                }
                done += 1;
                attach_directory
                    .attach(&mount.index.to_string(), view)
                    .with_context(|| plan.subject())?;
            }
        }
        attach_directory
            .cover_with_slaves()
            .with_context(|| plan.subject())
    }

    fn attach_directory(&self, user: &UserGuard<'_, '_>) -> Result<AttachDirectory> {
        let directory = self.config.attach_directory();
        Directory::create(&directory)?;
        if attach::needs_private_mount(self.config.attach) {
            let _lock = user.context.state.lock(LockName::Attach, self.deadline)?;
            attach::make_private_mount(&directory)?;
        }
        Ok(AttachDirectory::in_transient_namespace(&directory)?)
    }
}

/// A volume, and the mounts of a container that show it.
#[derive(Clone, Copy)]
struct ContainerVolume<'a, 'p> {
    target: &'p TargetPath,
    /// The mounts. Each of them gets a view.
    mounts: &'a [&'p PlannedMount],
    /// The user namespace whose id mappings the views use.
    ids: Option<&'a OwnedFd>,
}

impl<'a> ContainerVolume<'a, '_> {
    fn views(self) -> impl ExactSizeIterator<Item = View<'a>> {
        self.mounts.iter().map(move |mount| View {
            subpath: &mount.found.subpath,
            read_only: mount.read_only,
            ids: self.ids.filter(|_| !mount.maps_ids).map(AsFd::as_fd),
        })
    }
}

/// Mounts the volume in the pod's sandbox unless it is mounted there already, and returns the container's views of it.
fn mount_in_sandbox<'p>(
    user: &mut UserGuard<'_, 'p>,
    volume: ContainerVolume<'_, 'p>,
    request: SandboxRequest<'_>,
    attach_directory: &mut AttachDirectory,
) -> Result<Vec<DetachedMount>> {
    let ContainerVolume { target, mounts, .. } = volume;
    let locked = user.lock(target)?;
    let _watchdog = user.watch(&locked)?;
    crust_volume::ensure_mounted(user.context, &locked, request)?;
    let views = crust_volume::open_views(user.context, &locked, request.sandbox, volume.views())?;
    let before = attach_directory
        .mounts_before_delegate()
        .with_context(|| volume_subject(target))?;
    let (new, user_mounts) =
        user.prepare_pending(target, mounts, &request.record.pod_uid, Some(before));
    crust_volume::add_pending(user.context, &locked, new, user_mounts)?;
    Ok(views)
}

/// Mounts the volume for this container alone, and returns the container's views of it.
fn mount_for_container<'p>(
    user: &mut UserGuard<'_, 'p>,
    volume: ContainerVolume<'_, 'p>,
    cli: &Path,
    attach_directory: &mut AttachDirectory,
) -> Result<Vec<DetachedMount>> {
    let ContainerVolume { target, mounts, .. } = volume;
    let locked = user.lock(target)?;
    let _watchdog = user.watch(&locked)?;
    let pod_uid = user.plan.mounted_in.pod_uid(target, user.id);
    let before = attach_directory
        .mounts_before_delegate()
        .with_context(|| volume_subject(target))?;
    let (new, user_mounts) = user.prepare_pending(target, mounts, &pod_uid, Some(before));
    let mount = crust_volume::mount_for_container(user.context, &locked, new, user_mounts, cli)?;
    let views = attach_directory.take_views(&mount, volume.views(), user.context.deadline);
    views.with_context(|| volume_subject(target))
}

fn volume_subject(target: &TargetPath) -> String {
    format!("volume {}", target.volume_name())
}
