//! Queries about volumes for the reconciliation of pods, and their numbers for the metrics.

use std::collections::BTreeMap;

use super::{OngoingOperation, Volumes};
use crate::objects::Pod;
use crate::operations::RuntimeMount;
use crate::volumes::actual::{ActualMount, Certainty};
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::VolumeId;

impl Volumes {
    /// Reports the numbers of desired and actual volumes to the metrics.
    pub(crate) fn report_totals(&self) {
        let (desired, actual) = (self.desired.volumes.keys(), self.actual.volumes.keys());
        let metrics = &self.context.metrics;
        metrics.set_total_volumes(
            desired.map(|id| id.driver.as_str()),
            actual.map(|id| id.driver.as_str()),
        );
    }

    /// Returns whether all volumes of a pod are mounted.
    pub(crate) fn are_ready(&self, pod: &Pod) -> bool {
        let mut desired = self.desired.pod_volumes(&pod.uid);
        !self.desired.problems.contains_key(&pod.uid)
            && desired.all(|(id, _)| {
                let mount = self.actual.mount(id, &pod.uid);
                mount.is_some_and(|mount| mount.certainty == Certainty::Certain)
            })
    }

    /// Returns the volumes that a pod's runtime handler has to mount after the sandbox was created.
    pub(crate) fn runtime_mounts(&self, uid: &str) -> Vec<RuntimeMount> {
        let desired = self.desired.pod_volumes(uid);
        let runtime_mounts = desired.filter_map(|(id, mount)| {
            let actual = self.actual.mount(id, uid)?;
            Some(RuntimeMount {
                target: self.context.layout.target(uid, &actual.directory),
                info: actual.runtime_mount.clone()?,
                mount: mount.clone(),
            })
        });
        runtime_mounts.collect()
    }

    /// Returns whether a pod's runtime handler has to mount a volume.
    pub(crate) fn has_runtime_mounts(&self, uid: &str) -> bool {
        let mut desired = self.desired.pod_volumes(uid);
        desired.any(|(id, _)| {
            self.actual
                .mount(id, uid)
                .is_some_and(|mount| mount.runtime_mount.is_some())
        })
    }

    pub(crate) fn mounted(&self, uid: &str) -> BTreeMap<VolumeId, ActualMount> {
        let mounts = self.actual.volumes.iter();
        let mounts = mounts.filter_map(|(id, volume)| Some((id, volume.mounts.get(uid)?)));
        mounts
            .filter(|(_, mount)| mount.certainty == Certainty::Certain)
            .map(|(id, mount)| (id.clone(), mount.clone()))
            .collect()
    }

    /// Returns whether any pod wants a volume.
    pub(crate) fn is_desired(&self, id: &VolumeId) -> bool {
        self.desired.volumes.contains_key(id)
    }

    /// Returns whether a pod has no volume that is or may be mounted, or is being published.
    pub(crate) fn has_no_mounts(&self, uid: &str) -> bool {
        !self.actual.has_mounts_of(uid) && !self.is_being_published(uid)
    }

    /// Returns whether a pod's volume is being unpublished.
    pub(crate) fn is_being_unpublished(&self, id: &VolumeId, uid: &str) -> bool {
        let operation = self.in_progress.get(id);
        matches!(operation, Some(OngoingOperation::Step(VolumeStep::Unpublish(pod))) if pod == uid)
    }

    /// Returns whether any volume is being published for a pod.
    pub(crate) fn is_being_published(&self, uid: &str) -> bool {
        let is_publish = |operation: &OngoingOperation| matches!(operation, OngoingOperation::Step(VolumeStep::Publish(pod)) if pod == uid);
        self.in_progress.values().any(is_publish)
    }
}
