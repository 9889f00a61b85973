//! Queries about volumes, for the steps of pods and for metrics.

use std::collections::BTreeMap;

use super::{Busy, Volumes};
use crate::objects::Pod;
use crate::operations::RuntimeMount;
use crate::volumes::actual::{ActualMount, Certainty};
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::VolumeId;

impl Volumes {
    /// Reports the numbers of volumes to the metrics.
    pub(crate) fn count(&self) {
        let (desired, actual) = (self.desired.volumes.keys(), self.actual.volumes.keys());
        let metrics = &self.context.metrics;
        metrics.set_total_volumes(
            desired.map(|id| id.driver.as_str()),
            actual.map(|id| id.driver.as_str()),
        );
    }

    /// Returns whether all volumes of a pod are mounted.
    pub(crate) fn are_ready(&self, pod: &Pod) -> bool {
        let mut wanted = self.desired.of_pod(&pod.uid);
        !self.desired.problems.contains_key(&pod.uid)
            && wanted.all(|(id, _)| {
                let mount = self.actual.mount(id, &pod.uid);
                mount.is_some_and(|it| it.certainty == Certainty::Certain)
            })
    }

    /// Returns the volumes that a pod's runtime handler is to mount, once the sandbox exists.
    pub(crate) fn late(&self, uid: &str) -> Vec<RuntimeMount> {
        let wanted = self.desired.of_pod(uid);
        let late = wanted.filter_map(|(id, mount)| {
            let there = self.actual.mount(id, uid)?;
            Some(RuntimeMount {
                target: self.context.layout.target(uid, &there.directory),
                info: there.runtime_mount.clone()?,
                mount: mount.clone(),
            })
        });
        late.collect()
    }

    /// Returns whether a pod's runtime handler has to mount a volume.
    pub(crate) fn has_late(&self, uid: &str) -> bool {
        let mut wanted = self.desired.of_pod(uid);
        wanted.any(|(id, _)| {
            self.actual
                .mount(id, uid)
                .is_some_and(|it| it.runtime_mount.is_some())
        })
    }

    /// Returns the mounted volumes of a pod.
    pub(crate) fn mounted(&self, uid: &str) -> BTreeMap<VolumeId, ActualMount> {
        let mounts = self.actual.volumes.iter();
        let mounts = mounts.filter_map(|(id, volume)| Some((id, volume.mounts.get(uid)?)));
        mounts
            .filter(|(_, mount)| mount.certainty == Certainty::Certain)
            .map(|(id, mount)| (id.clone(), mount.clone()))
            .collect()
    }

    /// Returns whether a pod wants a volume.
    pub(crate) fn are_wanted(&self, id: &VolumeId) -> bool {
        self.desired.volumes.contains_key(id)
    }

    /// Returns whether a pod has no volume that is mounted or being mounted.
    pub(crate) fn are_gone(&self, uid: &str) -> bool {
        !self.actual.has_mounts_of(uid) && !self.is_coming(uid)
    }

    /// Returns whether a pod's volume is being unpublished.
    pub(crate) fn is_going(&self, id: &VolumeId, uid: &str) -> bool {
        let busy = self.under_way.get(id);
        matches!(busy, Some(Busy::Step(VolumeStep::Unpublish(pod))) if pod == uid)
    }

    /// Whether a volume of a pod's is being published.
    pub(crate) fn is_coming(&self, uid: &str) -> bool {
        let is_its = |it: &Busy| matches!(it, Busy::Step(VolumeStep::Publish(pod)) if pod == uid);
        self.under_way.values().any(is_its)
    }
}
