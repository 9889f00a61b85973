//! What pods want to know of their volumes, and who counts them.

use std::collections::BTreeMap;

use super::{Busy, Volumes};
use crate::objects::Pod;
use crate::operations::Late;
use crate::volumes::actual::{Certainty, Mount};
use crate::volumes::plan::Step;
use crate::volumes::spec::VolumeId;

impl Volumes {
    /// Tells how many there are.
    pub(crate) fn count(&self) {
        let (desired, actual) = (self.desired.volumes.keys(), self.actual.volumes.keys());
        let metrics = &self.context.metrics;
        metrics.set_total_volumes(
            desired.map(|id| id.driver.as_str()),
            actual.map(|id| id.driver.as_str()),
        );
    }

    /// Whether a pod has all of its volumes.
    pub(crate) fn are_ready(&self, pod: &Pod) -> bool {
        let mut wanted = self.desired.of_pod(&pod.uid);
        !self.desired.problems.contains_key(&pod.uid)
            && wanted.all(|(id, _)| {
                let mount = self.actual.mount(id, &pod.uid);
                mount.is_some_and(|it| it.certainty == Certainty::Certain)
            })
    }

    /// What a pod's runtime handler is to be told of, once the sandbox is there.
    pub(crate) fn late(&self, uid: &str) -> Vec<Late> {
        let wanted = self.desired.of_pod(uid);
        let late = wanted.filter_map(|(id, mount)| {
            let there = self.actual.mount(id, uid)?;
            Some(Late {
                target: self.context.layout.target(uid, &there.directory),
                info: there.late.clone()?,
                mount: mount.clone(),
            })
        });
        late.collect()
    }

    /// Whether a pod's runtime handler has to be told of something.
    pub(crate) fn has_late(&self, uid: &str) -> bool {
        let mut wanted = self.desired.of_pod(uid);
        wanted.any(|(id, _)| {
            self.actual
                .mount(id, uid)
                .is_some_and(|it| it.late.is_some())
        })
    }

    /// A pod's volumes that are there.
    pub(crate) fn mounted(&self, uid: &str) -> BTreeMap<VolumeId, Mount> {
        let mounts = self.actual.volumes.iter();
        let mounts = mounts.filter_map(|(id, volume)| Some((id, volume.mounts.get(uid)?)));
        mounts
            .filter(|(_, mount)| mount.certainty == Certainty::Certain)
            .map(|(id, mount)| (id.clone(), mount.clone()))
            .collect()
    }

    /// Whether a pod wants a volume.
    pub(crate) fn are_wanted(&self, id: &VolumeId) -> bool {
        self.desired.volumes.contains_key(id)
    }

    /// Whether nothing of a pod's volumes is there, or being made.
    pub(crate) fn are_gone(&self, uid: &str) -> bool {
        !self.actual.has_mounts_of(uid) && !self.is_coming(uid)
    }

    /// Whether a pod's volume is being unpublished.
    pub(crate) fn is_going(&self, id: &VolumeId, uid: &str) -> bool {
        let busy = self.under_way.get(id);
        matches!(busy, Some(Busy::Step(Step::Unpublish(pod))) if pod == uid)
    }

    /// Whether a volume of a pod's is being published.
    pub(crate) fn is_coming(&self, uid: &str) -> bool {
        let is_its = |it: &Busy| matches!(it, Busy::Step(Step::Publish(pod)) if pod == uid);
        self.under_way.values().any(is_its)
    }
}
