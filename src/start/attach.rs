//! Mounts a container's volumes and attaches them where only the delegate finds them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use crust_blockfs::view::{DetachedMount, View};
use crust_state::TargetPath;
use crust_state::files::Directory;
use crust_state::lock::LockName;
use crust_volume::SandboxRequest;
use crust_volume::attach::{self, AttachDirectory};

use super::Job;
use super::container::Users;
use super::decide::running_sandbox;
use crate::plan::{MountedIn, PlannedMount};

impl Job<'_> {
    /// Mounts and attaches the volumes. From here on this process is in a mount namespace of its own.
    pub(super) fn attach_volumes(&self, users: &mut Users<'_, '_>, cli: &Path) -> Result<()> {
        let plan = users.plan;
        let sandbox = running_sandbox(plan)?;
        let ids = plan
            .ids
            .as_ref()
            .map(crust_blockfs::user_namespace::UserNamespace::open);
        let ids = ids.transpose().with_context(|| plan.names())?.flatten();
        let mut attach_directory = self.attach_directory(users).with_context(|| plan.names())?;
        let (mut done, all) = (0, plan.mounts.len());
        for (target, mounts) in plan.by_volume() {
            let volume = ContainerVolume {
                target,
                mounts: &mounts,
                ids: ids.as_ref(),
            };
            let views = match (&plan.mounted_in, &sandbox) {
                (MountedIn::Sandbox(record), Some(sandbox)) => {
                    let host = SandboxRequest {
                        sandbox,
                        record,
                        cli,
                        label: plan.label(),
                    };
                    from_sandbox(users, volume, host, &mut attach_directory)?
                }
                _ => own(users, volume, cli, &mut attach_directory)?,
            };
            for (mount, view) in mounts.iter().zip(&views) {
                if self.deadline.expired() {
                    bail!(
                        "{}: only {done} of the container's {all} mounts of volumes were attached when the \
                         time for a create was over; hint: give the container fewer mounts",
                        of_volume(target)
                    );
                }
                done += 1;
                attach_directory
                    .attach(&mount.index.to_string(), view)
                    .with_context(|| plan.names())?;
            }
        }
        attach_directory
            .cover_with_slaves()
            .with_context(|| plan.names())
    }

    fn attach_directory(&self, users: &Users<'_, '_>) -> Result<AttachDirectory> {
        let directory = self.config.attach_directory();
        Directory::create(&directory)?;
        if attach::needs_private_mount(self.config.attach) {
            let _lock = users.context.state.lock(LockName::Attach, self.deadline)?;
            attach::make_private_mount(&directory)?;
        }
        Ok(AttachDirectory::in_transient_namespace(&directory)?)
    }
}

/// A volume, and the mounts of a container that show it.
#[derive(Clone, Copy)]
struct ContainerVolume<'a, 'p> {
    target: &'p TargetPath,
    /// The mounts, each of which gets a view.
    mounts: &'a [&'p PlannedMount],
    /// The user namespace whose ids the views show.
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

/// Mounts the volume in the pod's sandbox, once, and takes the container's views from there.
fn from_sandbox<'p>(
    users: &mut Users<'_, 'p>,
    volume: ContainerVolume<'_, 'p>,
    host: SandboxRequest<'_>,
    attach_directory: &mut AttachDirectory,
) -> Result<Vec<DetachedMount>> {
    let ContainerVolume { target, mounts, .. } = volume;
    let locked = users.lock(target)?;
    crust_volume::ensure_mounted(users.context, &locked, host)?;
    let views = crust_volume::open_views(users.context, &locked, host.sandbox, volume.views())?;
    let before = attach_directory
        .mounts_before_delegate()
        .with_context(|| of_volume(target))?;
    let (new, used) = users.announce(target, mounts, &host.record.pod_uid, Some(before));
    crust_volume::announce(users.context, &locked, new, used)?;
    Ok(views)
}

/// Mounts the volume for the container alone, and takes its views.
fn own<'p>(
    users: &mut Users<'_, 'p>,
    volume: ContainerVolume<'_, 'p>,
    cli: &Path,
    attach_directory: &mut AttachDirectory,
) -> Result<Vec<DetachedMount>> {
    let ContainerVolume { target, mounts, .. } = volume;
    let locked = users.lock(target)?;
    let pod_uid = users.plan.mounted_in.pod_uid(target, users.id);
    let before = attach_directory
        .mounts_before_delegate()
        .with_context(|| of_volume(target))?;
    let (new, used) = users.announce(target, mounts, &pod_uid, Some(before));
    let mount = crust_volume::mount_for_container(users.context, &locked, new, used, cli)?;
    let views = attach_directory.take_views(&mount, volume.views(), users.context.deadline);
    views.with_context(|| of_volume(target))
}

fn of_volume(target: &TargetPath) -> String {
    format!("volume {}", target.volume_name())
}
