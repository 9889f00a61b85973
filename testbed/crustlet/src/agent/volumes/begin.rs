//! Starts operations on volumes, each in a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::{OngoingOperation, Volumes};
use crate::agent::Completion;
use crate::metrics::StorageOperation;
use crate::objects::{Objects, Pod};
use crate::operations::{
    Context, FailedOperation, Publication, PublishResult, publish, stage, unpublish, unstage,
};
use crate::volumes::actual::Mounter;
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::{MountSpec, VolumeId};

#[derive(Debug)]
pub(crate) struct VolumeStepResult {
    pub(super) id: VolumeId,
    pub(super) step: VolumeStep,
    pub(super) mount: Option<Box<MountSpec>>,
    pub(super) result: Result<Option<PublishResult>, FailedOperation>,
}

#[derive(Debug)]
enum VolumeOperation {
    Stage(Vec<MountSpec>),
    /// The volume, the pod, and the program that has already mounted the volume, if any.
    Publish(Box<MountSpec>, Arc<Pod>, Option<Mounter>),
    Unpublish(Publication),
    Unstage(VolumeId),
}

impl VolumeOperation {
    async fn carry_out(
        &self,
        context: &Context,
        objects: &Objects,
    ) -> Result<Option<PublishResult>, FailedOperation> {
        match self {
            Self::Stage(mounts) => stage(context, objects, mounts).await.map(|()| None),
            Self::Publish(mount, pod, current) => publish(context, objects, pod, mount, *current)
                .await
                .map(Some),
            Self::Unpublish(publication) => {
                let result = unpublish(context, publication).await;
                result.map(|()| None).map_err(FailedOperation::uncertain)
            }
            Self::Unstage(id) => {
                let result = unstage(context, id).await;
                result.map(|()| None).map_err(FailedOperation::uncertain)
            }
        }
    }

    const fn metric(&self) -> StorageOperation {
        match self {
            Self::Stage(_) | Self::Publish(..) => StorageOperation::Mount,
            Self::Unpublish(_) => StorageOperation::Unmount,
            Self::Unstage(_) => StorageOperation::UnmountDevice,
        }
    }

    /// Returns the mount that the operation staged or published. Of several staged mounts, it returns the first.
    fn mount(self) -> Option<Box<MountSpec>> {
        match self {
            Self::Stage(mounts) => mounts.into_iter().next().map(Box::new),
            Self::Publish(mount, ..) => Some(mount),
            Self::Unpublish(_) | Self::Unstage(_) => None,
        }
    }
}

impl Volumes {
    /// Starts a step in a task of its own. `started` has the pods that may have sandboxes or containers.
    pub(super) fn begin(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        key: (VolumeId, VolumeStep),
        started: &BTreeSet<String>,
    ) {
        let (id, step) = key;
        let Some(operation) = self.operation_for(pods, &id, &step, started) else {
            return;
        };
        let ongoing = OngoingOperation::Step(step.clone());
        self.in_progress.insert(id.clone(), ongoing);
        // From here on the volume doesn't count as mounted, even if it is desired again before the driver answers.
        if matches!(step, VolumeStep::Unpublish(_) | VolumeStep::Unstage) {
            self.mark_uncertain(&(id.clone(), step.clone()), None);
        }
        let (context, objects, completions) = (
            self.context.clone(),
            Arc::clone(objects),
            self.completions.clone(),
        );
        tokio::spawn(async move {
            let started = Instant::now();
            let result = operation.carry_out(&context, &objects).await;
            let (metrics, elapsed) = (&context.metrics, started.elapsed());
            metrics.operation(&id.driver, operation.metric(), result.is_ok(), elapsed);
            let result = VolumeStepResult {
                id,
                step,
                mount: operation.mount(),
                result,
            };
            // The channel is closed only when the process is ending.
            let _ = completions.send(Completion::Volume(result));
        });
    }

    /// Returns the operation of a step. `None` if the step is outdated.
    fn operation_for(
        &self,
        pods: &BTreeMap<String, Arc<Pod>>,
        id: &VolumeId,
        step: &VolumeStep,
        started: &BTreeSet<String>,
    ) -> Option<VolumeOperation> {
        Some(match step {
            VolumeStep::Stage => {
                let mounts = self.desired.volumes.get(id)?.mounts.keys();
                VolumeOperation::Stage(mounts.filter_map(|pod| self.mount_of(id, pod)).collect())
            }
            VolumeStep::Publish(pod) => {
                let mount = Box::new(self.mount_of(id, pod)?);
                // Before the driver has answered, the recorded mounter `Driver` is only an assumption.
                let is_certain =
                    |mounter: &Mounter| *mounter != Mounter::Driver || started.contains(pod);
                let current = self.actual.mount(id, pod).map(|mount| mount.mounter);
                let current = current.filter(is_certain);
                VolumeOperation::Publish(mount, Arc::clone(pods.get(pod)?), current)
            }
            VolumeStep::Unpublish(pod) => VolumeOperation::Unpublish(self.publication(id, pod)?),
            VolumeStep::Unstage => VolumeOperation::Unstage(id.clone()),
        })
    }

    /// Returns the desired mount of a pod. An existing mount stays deferred or not deferred, even if the desired state
    /// has changed.
    fn mount_of(&self, id: &VolumeId, pod: &str) -> Option<MountSpec> {
        let mut mount = self.desired.volumes.get(id)?.mounts.get(pod)?.clone();
        if let Some(current) = self.actual.mount(id, pod) {
            mount.deferred = current.mounter == Mounter::Deferred;
        }
        Some(mount)
    }

    fn publication(&self, id: &VolumeId, pod: &str) -> Option<Publication> {
        let mount = self.actual.mount(id, pod)?;
        Some(Publication {
            id: id.clone(),
            pod: pod.to_owned(),
            directory: mount.directory.clone(),
            mounter: mount.mounter,
        })
    }
}
