//! Prepares a container with volumes: records it as a pending user of them, attaches its views of them, and rewrites
//! its config.

use anyhow::{Context as _, Result};
use crust_blockfs::device_mounts::DeviceMounts;
use crust_state::TargetPath;
use crust_state::config::MountMode;
use crust_state::files::Directory;
use crust_state::record::UserMount;
use crust_volume::{Context, LockedVolume, NewContainer, Watchdog};

use super::CreateCall;
use super::bundle::Bundle;
use crate::node::CachedNode;
use crate::oci::Document;
use crate::plan::{ContainerPlan, PlannedMount};
use crate::report::{ErrorReporter, FAILURE};

impl CreateCall<'_> {
    pub(super) fn container(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<()> {
        let context = self.context(bundle.state());
        let id = self.id().with_context(|| plan.subject())?;
        let (rewrite, hooks) = self.container_rewrite(document, plan, node)?;
        let mut user = UserGuard {
            context: &context,
            plan,
            id: &id,
            reporter: self.reporter,
            node,
            pending_volumes: Vec::new(),
        };
        match plan.mount_mode() {
            MountMode::Bind => self.attach_volumes(&mut user, &hooks.cli)?,
            MountMode::Hook => {
                Directory::create(&self.config.attach_directory())?;
                reserve_volumes(&mut user)?;
            }
        }
        let committed = bundle.commit(document, rewrite);
        committed.with_context(|| plan.subject())?;
        user.commit();
        Ok(())
    }
}

/// Records the container as a pending user of volumes that its hook will mount.
fn reserve_volumes(user: &mut UserGuard<'_, '_>) -> Result<()> {
    for (target, mounts) in user.plan.by_volume() {
        let locked = user.lock(target)?;
        let pod_uid = user.plan.mounted_in.pod_uid(target, user.id);
        let (new, mounts) = user.prepare_pending(target, &mounts, &pod_uid, None);
        crust_volume::reserve(user.context, &locked, new, mounts)?;
    }
    Ok(())
}

/// A container that is a pending user of its volumes. Dropping the guard withdraws it from them, unless it was
/// [committed](UserGuard::commit).
pub(super) struct UserGuard<'a, 'p> {
    pub(super) context: &'a Context<'a>,
    pub(super) plan: &'p ContainerPlan,
    pub(super) id: &'p str,
    reporter: &'a ErrorReporter,
    node: &'a CachedNode<'a>,
    pending_volumes: Vec<&'p TargetPath>,
}

impl<'p> UserGuard<'_, 'p> {
    /// Locks one of the container's volumes. Fails if the volume's entry has changed since the container was planned.
    pub(super) fn lock(&self, target: &TargetPath) -> Result<LockedVolume> {
        Ok(crust_volume::lock_unchanged(
            self.context,
            &*self.node.volume(target)?,
        )?)
    }

    /// Ends this process with an error if the volume is a share whose server doesn't answer by the deadline.
    pub(super) fn watch(&self, locked: &LockedVolume) -> Result<Option<Watchdog>> {
        let reporter = self.reporter.clone();
        let watchdog = Watchdog::watch(self.context, locked.volume(), move |error| {
            reporter.report_fatal(&error.into());
            FAILURE.into()
        });
        Ok(watchdog?)
    }

    /// Returns the data with which the caller records the container as a pending user of the volume. From here on,
    /// dropping the guard withdraws the container from that volume.
    pub(super) fn prepare_pending<'u>(
        &mut self,
        target: &'p TargetPath,
        mounts: &[&PlannedMount],
        pod_uid: &'u str,
        before: Option<&'u DeviceMounts>,
    ) -> (NewContainer<'u>, Vec<UserMount>)
    where
        'p: 'u,
    {
        self.pending_volumes.push(target);
        let new = NewContainer {
            id: self.id,
            sandbox: self.plan.mounted_in.sandbox(self.id),
            pod_uid,
            label: self.plan.label(),
            mounts_before: before,
        };
        let mounts = mounts.iter().copied().map(user_mount).collect();
        (new, mounts)
    }

    /// Keeps the container as a user.
    fn commit(mut self) {
        self.pending_volumes.clear();
    }
}

impl Drop for UserGuard<'_, '_> {
    fn drop(&mut self) {
        for target in &self.pending_volumes {
            // The create's own error is the one to report. A dead process doesn't count as a user anyway.
            if let Err(error) = crust_volume::withdraw(self.context, target, self.id) {
                tracing::warn!("{error}");
            }
        }
    }
}

fn user_mount(mount: &PlannedMount) -> UserMount {
    UserMount {
        destination: mount.destination.clone(),
        source: mount.source.clone(),
    }
}
