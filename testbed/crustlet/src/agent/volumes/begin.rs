//! Begins operations on volumes, each as a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::{Busy, Volumes};
use crate::agent::Done;
use crate::metrics::Operation;
use crate::objects::{Objects, Pod};
use crate::operations::{
    Context, FailedOperation, Publication, Published, publish, stage, unpublish, unstage,
};
use crate::volumes::actual::Mounter;
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::{MountSpec, VolumeId};

/// An operation has ended.
#[derive(Debug)]
pub(crate) struct VolumeDone {
    pub(super) id: VolumeId,
    pub(super) step: VolumeStep,
    pub(super) mount: Option<Box<MountSpec>>,
    pub(super) result: Result<Option<Published>, FailedOperation>,
}

/// An operation, with all that it needs.
#[derive(Debug)]
enum Work {
    Stage(Vec<MountSpec>),
    /// Publishes a volume, with the program that has it mounted already.
    Publish(Box<MountSpec>, Arc<Pod>, Option<Mounter>),
    Unpublish(Publication),
    Unstage(VolumeId),
}

impl Work {
    async fn carry_out(
        &self,
        context: &Context,
        objects: &Objects,
    ) -> Result<Option<Published>, FailedOperation> {
        match self {
            Self::Stage(wanted) => stage(context, objects, wanted).await.map(|()| None),
            Self::Publish(mount, pod, there) => publish(context, objects, pod, mount, *there)
                .await
                .map(Some),
            Self::Unpublish(publication) => {
                let ended = unpublish(context, publication).await;
                ended.map(|()| None).map_err(FailedOperation::uncertain)
            }
            Self::Unstage(id) => {
                let ended = unstage(context, id).await;
                ended.map(|()| None).map_err(FailedOperation::uncertain)
            }
        }
    }

    const fn operation(&self) -> Operation {
        match self {
            Self::Stage(_) | Self::Publish(..) => Operation::Mount,
            Self::Unpublish(_) => Operation::Unmount,
            Self::Unstage(_) => Operation::UnmountDevice,
        }
    }

    /// Returns the mount that was desired.
    fn mount(self) -> Option<Box<MountSpec>> {
        match self {
            Self::Stage(wanted) => wanted.into_iter().next().map(Box::new),
            Self::Publish(mount, ..) => Some(mount),
            Self::Unpublish(_) | Self::Unstage(_) => None,
        }
    }
}

impl Volumes {
    pub(super) fn begin(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        key: (VolumeId, VolumeStep),
        begun: &BTreeSet<String>,
    ) {
        let (id, step) = key;
        let Some(work) = self.work(pods, &id, &step, begun) else {
            return;
        };
        let busy = Busy::Step(step.clone());
        self.under_way.insert(id.clone(), busy);
        // From here on nobody may count on it, also where it is wanted again before the answer.
        if matches!(step, VolumeStep::Unpublish(_) | VolumeStep::Unstage) {
            self.uncertain(&(id.clone(), step.clone()), None);
        }
        let (context, objects, done) =
            (self.context.clone(), Arc::clone(objects), self.done.clone());
        tokio::spawn(async move {
            let begun = Instant::now();
            let result = work.carry_out(&context, &objects).await;
            let (metrics, elapsed) = (&context.metrics, begun.elapsed());
            metrics.operation(&id.driver, work.operation(), result.is_ok(), elapsed);
            let ended = VolumeDone {
                id,
                step,
                mount: work.mount(),
                result,
            };
            // Nobody hears of it where the process ends.
            let _ = done.send(Done::Volume(ended));
        });
    }

    /// Returns the operation of a step. `None` if the pod that wanted it is gone.
    fn work(
        &self,
        pods: &BTreeMap<String, Arc<Pod>>,
        id: &VolumeId,
        step: &VolumeStep,
        begun: &BTreeSet<String>,
    ) -> Option<Work> {
        Some(match step {
            VolumeStep::Stage => {
                let wanted = self.desired.volumes.get(id)?.mounts.keys();
                Work::Stage(wanted.filter_map(|pod| self.mount_of(id, pod)).collect())
            }
            VolumeStep::Publish(pod) => {
                let mount = Box::new(self.mount_of(id, pod)?);
                // What is recorded before the driver has answered is no more than a guess.
                let is_sure = |it: &Mounter| *it != Mounter::Driver || begun.contains(pod);
                let there = self.actual.mount(id, pod).map(|it| it.mounter);
                let there = there.filter(is_sure);
                Work::Publish(mount, Arc::clone(pods.get(pod)?), there)
            }
            VolumeStep::Unpublish(pod) => Work::Unpublish(self.publication(id, pod)?),
            VolumeStep::Unstage => Work::Unstage(id.clone()),
        })
    }

    /// A pod's mount as it is wanted; one that is there stays deferred or not, whatever was written since.
    fn mount_of(&self, id: &VolumeId, pod: &str) -> Option<MountSpec> {
        let mut mount = self.desired.volumes.get(id)?.mounts.get(pod)?.clone();
        if let Some(there) = self.actual.mount(id, pod) {
            mount.deferred = there.mounter == Mounter::Deferred;
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
