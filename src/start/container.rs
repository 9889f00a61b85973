//! Creates a container with volumes: announces it as their user, attaches its views of them, and rewrites its config.

use anyhow::{Context as _, Result};
use crust_blockfs::device_mounts::DeviceMounts;
use crust_state::TargetPath;
use crust_state::config::MountMode;
use crust_state::files::Directory;
use crust_state::record::UserMount;
use crust_volume::{Context, LockedVolume, NewContainer};

use super::Job;
use super::bundle::Bundle;
use crate::node::CachedNode;
use crate::oci::Document;
use crate::plan::{ContainerPlan, PlannedMount};

impl Job<'_> {
    pub(super) fn container(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<()> {
        let context = self.context(bundle.state());
        let id = self.id().with_context(|| plan.names())?;
        let (rewrite, hooks) = self.container_rewrite(document, plan, node)?;
        let mut users = Users::new(&context, plan, node, &id);
        match plan.way() {
            MountMode::Bind => self.attach_volumes(&mut users, &hooks.cli)?,
            MountMode::Hook => {
                Directory::create(&self.config.attach_directory())?;
                reserve(&mut users)?;
            }
        }
        let committed = bundle.commit(document, rewrite);
        committed.with_context(|| plan.names())?;
        users.stay();
        Ok(())
    }
}

/// Announces the container to its volumes, which its hook will mount.
fn reserve(users: &mut Users<'_, '_>) -> Result<()> {
    for (target, mounts) in users.plan.by_volume() {
        let locked = users.lock(target)?;
        let pod_uid = users.plan.mounted_in.pod_uid(target, users.id);
        let (new, mounts) = users.announce(target, &mounts, &pod_uid, None);
        crust_volume::reserve(users.context, &locked, new, mounts)?;
    }
    Ok(())
}

/// The container as a user of its volumes, taken back unless it [`stay`](Users::stay)s.
pub(super) struct Users<'a, 'p> {
    pub(super) context: &'a Context<'a>,
    pub(super) plan: &'p ContainerPlan,
    pub(super) id: &'p str,
    node: &'a CachedNode<'a>,
    announced: Vec<&'p TargetPath>,
}

impl<'a, 'p> Users<'a, 'p> {
    fn new(
        context: &'a Context<'a>,
        plan: &'p ContainerPlan,
        node: &'a CachedNode<'a>,
        id: &'p str,
    ) -> Self {
        Self {
            context,
            plan,
            id,
            node,
            announced: Vec::new(),
        }
    }

    /// Locks one of the container's volumes, which has to be staged as it was when the container was planned.
    pub(super) fn lock(&self, target: &TargetPath) -> Result<LockedVolume> {
        Ok(crust_volume::lock_unchanged(
            self.context,
            &*self.node.volume(target)?,
        )?)
    }

    /// Returns what a volume is told of the container, which counts as announced from here on.
    pub(super) fn announce<'u>(
        &mut self,
        target: &'p TargetPath,
        mounts: &[&PlannedMount],
        pod_uid: &'u str,
        before: Option<&'u DeviceMounts>,
    ) -> (NewContainer<'u>, Vec<UserMount>)
    where
        'p: 'u,
    {
        self.announced.push(target);
        let new = NewContainer {
            id: self.id,
            sandbox: self.plan.mounted_in.sandbox(self.id),
            pod_uid,
            label: self.plan.label(),
            mounts_before: before,
        };
        let mounts = mounts.iter().copied().map(used).collect();
        (new, mounts)
    }

    fn stay(mut self) {
        self.announced.clear();
    }
}

impl Drop for Users<'_, '_> {
    fn drop(&mut self) {
        for target in &self.announced {
            // The first error is the one that counts; a dead process is no user anyhow.
            if let Err(error) = crust_volume::withdraw(self.context, target, self.id) {
                tracing::warn!("{error}");
            }
        }
    }
}

fn used(mount: &PlannedMount) -> UserMount {
    UserMount {
        destination: mount.destination.clone(),
        source: mount.source.clone(),
    }
}
