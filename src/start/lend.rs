//! A container's volumes, mounted and attached where only the delegate finds them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use crust_blockfs::view::{DetachedMount, View};
use crust_state::TargetPath;
use crust_state::files::Directory;
use crust_state::lock::LockName;
use crust_volume::Host;
use crust_volume::attach::{self, Attachments};

use super::Job;
use super::container::Users;
use super::decide::running_sandbox;
use crate::plan::{MountedIn, PlannedMount};

impl Job<'_> {
    /// From here on this process is in a mount namespace of its own.
    pub(super) fn lend(&self, users: &mut Users<'_, '_>, cli: &Path) -> Result<()> {
        let plan = users.plan;
        let sandbox = running_sandbox(plan)?;
        let ids = plan.ids.as_ref().map(crust_blockfs::ids::Ids::open);
        let ids = ids.transpose().with_context(|| plan.names())?.flatten();
        let mut attachments = self.attachments(users).with_context(|| plan.names())?;
        let (mut done, all) = (0, plan.mounts.len());
        for (target, mounts) in plan.by_volume() {
            let views = match (&plan.mounted_in, &sandbox) {
                (MountedIn::Sandbox(record), Some(sandbox)) => {
                    let host = Host {
                        sandbox,
                        record,
                        cli,
                        label: plan.label(),
                    };
                    from_sandbox(users, target, host, &mut attachments, &mounts, ids.as_ref())?
                }
                _ => own(users, target, &mut attachments, &mounts, ids.as_ref(), cli)?,
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
                attachments
                    .add(&mount.index.to_string(), view)
                    .with_context(|| plan.names())?;
            }
        }
        attachments.cover().with_context(|| plan.names())
    }

    fn attachments(&self, users: &Users<'_, '_>) -> Result<Attachments> {
        let directory = self.config.attach_directory();
        Directory::create(&directory)?;
        if attach::is_held_privately(self.config.attach) {
            let _lock = users.context.state.lock(LockName::Attach, self.deadline)?;
            attach::hold_privately(&directory)?;
        }
        Ok(Attachments::new(&directory)?)
    }
}

/// The volume is mounted in the pod's sandbox, once; the container gets copies from there.
fn from_sandbox<'p>(
    users: &mut Users<'_, 'p>,
    target: &'p TargetPath,
    host: Host<'_>,
    attachments: &mut Attachments,
    mounts: &[&PlannedMount],
    ids: Option<&OwnedFd>,
) -> Result<Vec<DetachedMount>> {
    let locked = users.lock(target)?;
    crust_volume::ensure(users.context, &locked, host)?;
    let views = mounts.iter().map(|mount| view(mount, ids));
    let views = crust_volume::views(users.context, &locked, host.sandbox, views)?;
    let before = attachments.before().with_context(|| of_volume(target))?;
    let (new, used) = users.announce(target, mounts, &host.record.pod_uid, Some(before));
    crust_volume::begin(users.context, &locked, new, used)?;
    Ok(views)
}

/// The volume is mounted for the container alone.
fn own<'p>(
    users: &mut Users<'_, 'p>,
    target: &'p TargetPath,
    attachments: &mut Attachments,
    mounts: &[&PlannedMount],
    ids: Option<&OwnedFd>,
    cli: &Path,
) -> Result<Vec<DetachedMount>> {
    let locked = users.lock(target)?;
    let pod_uid = users.plan.mounted_in.pod_uid(target, users.id);
    let before = attachments.before().with_context(|| of_volume(target))?;
    let (new, used) = users.announce(target, mounts, &pod_uid, Some(before));
    let mount = crust_volume::instantiate(users.context, &locked, new, used, cli)?;
    let views = mounts.iter().map(|mount| view(mount, ids));
    let views = attachments.views(&mount, views, users.context.deadline);
    views.with_context(|| of_volume(target))
}

fn of_volume(target: &TargetPath) -> String {
    format!("volume {}", target.volume_name())
}

fn view<'a>(mount: &'a PlannedMount, ids: Option<&'a OwnedFd>) -> View<'a> {
    View {
        subpath: &mount.found.subpath,
        read_only: mount.read_only,
        ids: ids.filter(|_| !mount.maps_ids).map(AsFd::as_fd),
    }
}
