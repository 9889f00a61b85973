//! Decides the next step of a volume, from its actual to its desired state.

use std::collections::BTreeSet;

use super::actual::{Actual, ActualVolume, Certainty, Mounter};
use super::desired::{Desired, DesiredVolume};
use super::spec::{Lifecycle, VolumeId};

/// A step of a volume's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// `NodeStageVolume`
    Stage,
    /// `NodePublishVolume` for a pod, by its uid.
    Publish(String),
    /// `NodeUnpublishVolume` from a pod.
    Unpublish(String),
    /// `NodeUnstageVolume`
    Unstage,
}

/// The steps that are allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed<'a> {
    /// Whether the desired state is known. Until then nothing is unmounted (KEP-3756, "Proposed `VolumeManager`
    /// startup", 4).
    pub(crate) unmounts: bool,
    /// Pods whose processes may still use their volumes.
    pub(crate) running: &'a BTreeSet<String>,
    /// Pods that were begun: how their volumes are mounted stays as it is (KEP-2857, "`DeferFSMount` field in Pod
    /// Spec").
    pub(crate) begun: &'a BTreeSet<String>,
}

/// The next steps of each volume that needs one, the first before the others: each will do, and a volume has one at
/// a time. The one that failed lately needn't hold up the others.
pub(crate) fn plan(
    desired: &Desired,
    actual: &Actual,
    allowed: Allowed<'_>,
) -> Vec<(VolumeId, Vec<Step>)> {
    let ids: BTreeSet<&VolumeId> = desired
        .volumes
        .keys()
        .chain(actual.volumes.keys())
        .collect();
    let steps = ids.into_iter().map(|id| {
        let steps = next(desired.volumes.get(id), actual.volumes.get(id), allowed);
        (id.clone(), steps)
    });
    steps.filter(|(_, steps)| !steps.is_empty()).collect()
}

fn next(
    desired: Option<&DesiredVolume>,
    actual: Option<&ActualVolume>,
    allowed: Allowed<'_>,
) -> Vec<Step> {
    let wanted = |pod: &String| desired.and_then(|it| it.mounts.get(pod));
    let mut steps = Vec::new();
    // What goes goes first: the one that comes may be refused because of it.
    for (pod, mount) in actual.iter().flat_map(|it| &it.mounts) {
        let is_running = allowed.running.contains(pod);
        let goes = match wanted(pod) {
            None => allowed.unmounts && !is_running,
            // Deferred since, or not any more, before the pod has begun.
            Some(wanted) => {
                let is_other = match mount.mounter {
                    Mounter::Driver => wanted.deferred,
                    Mounter::Deferred => !wanted.deferred,
                    Mounter::Runtime => false,
                };
                is_other && allowed.unmounts && !allowed.begun.contains(pod)
            }
        };
        if goes {
            steps.push(Step::Unpublish(pod.clone()));
        }
    }
    let is_staged = actual.and_then(|it| it.staged);
    for (pod, mount) in desired.iter().flat_map(|it| &it.mounts) {
        let there = actual.and_then(|it| it.mounts.get(pod));
        let goes = steps.contains(&Step::Unpublish(pod.clone()));
        if goes || there.is_some_and(|it| it.certainty == Certainty::Certain) {
            continue;
        }
        let is_ephemeral = mount.volume.lifecycle == Lifecycle::Ephemeral;
        if is_ephemeral || is_staged == Some(Certainty::Certain) {
            steps.push(Step::Publish(pod.clone()));
        } else if !steps.contains(&Step::Stage) {
            steps.push(Step::Stage);
        }
    }
    let is_empty = actual.is_some_and(|it| it.mounts.is_empty());
    if desired.is_none() && is_empty && is_staged.is_some() && allowed.unmounts {
        steps.push(Step::Unstage);
    }
    steps
}
