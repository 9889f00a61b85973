//! Operations of volumes, each a task of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::Volumes;
use crate::agent::Done;
use crate::metrics::Operation;
use crate::objects::{Objects, Pod};
use crate::operations::{
    Attempt, OperationError, Publication, Published, publish, stage, unpublish, unstage,
};
use crate::volumes::actual::Mounter;
use crate::volumes::plan::Step;
use crate::volumes::spec::{MountSpec, VolumeId};

/// An operation has ended.
#[derive(Debug)]
pub(crate) struct VolumeDone {
    pub(super) id: VolumeId,
    pub(super) step: Step,
    pub(super) mount: Option<Box<MountSpec>>,
    pub(super) result: Result<Option<Published>, Attempt>,
}

impl Volumes {
    pub(super) fn begin(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        id: VolumeId,
        step: Step,
    ) {
        let mount = match &step {
            Step::Publish(pod) => self.mount_of(&id, pod),
            Step::Stage => {
                let volume = self.desired.volumes.get(&id);
                volume.and_then(|it| it.mounts.values().next().cloned())
            }
            Step::Unpublish(_) | Step::Unstage => None,
        };
        let wanted = self
            .desired
            .volumes
            .get(&id)
            .filter(|_| step == Step::Stage);
        let wanted: Vec<MountSpec> =
            wanted.map_or_else(Vec::new, |it| it.mounts.values().cloned().collect());
        let pod = match &step {
            Step::Publish(pod) => pods.get(pod).cloned(),
            _ => None,
        };
        let publication = match &step {
            Step::Unpublish(pod) => self.publication(&id, pod),
            _ => None,
        };
        self.under_way.insert(id.clone(), step.clone());
        let (context, objects, done) =
            (self.context.clone(), Arc::clone(objects), self.done.clone());
        tokio::spawn(async move {
            let begun = Instant::now();
            let result = match (&step, &mount, pod, publication) {
                (Step::Stage, ..) => stage(&context, &objects, &wanted).await.map(|()| None),
                (Step::Publish(_), Some(mount), Some(pod), _) => {
                    publish(&context, &objects, &pod, mount).await.map(Some)
                }
                (Step::Unpublish(_), _, _, Some(publication)) => {
                    let ended = unpublish(&context, &publication).await;
                    ended.map(|()| None).map_err(Attempt::within)
                }
                (Step::Unstage, ..) => {
                    let ended = unstage(&context, &id).await;
                    ended.map(|()| None).map_err(Attempt::within)
                }
                // Who wanted it has gone since.
                _ => Err(Attempt::before(OperationError::Nobody)),
            };
            let operation = match step {
                Step::Stage | Step::Publish(_) => Operation::Mount,
                Step::Unpublish(_) => Operation::Unmount,
                Step::Unstage => Operation::UnmountDevice,
            };
            let metrics = &context.metrics;
            metrics.operation(&id.driver, operation, result.is_ok(), begun.elapsed());
            let mount = mount.map(Box::new);
            let ended = VolumeDone {
                id,
                step,
                mount,
                result,
            };
            // Nobody hears of it where the process ends.
            let _ = done.send(Done::Volume(ended));
        });
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
