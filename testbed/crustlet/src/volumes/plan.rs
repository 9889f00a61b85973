//! Plans the next steps of volumes, from the actual to the desired state.

use std::collections::BTreeSet;

use super::actual::{ActualState, ActualVolume, Certainty, Mounter};
use super::desired::{DesiredState, DesiredVolume};
use super::spec::{Lifecycle, VolumeId};

/// A step of a volume. Pods are named by their UIDs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VolumeStep {
    /// Call `NodeStageVolume`.
    Stage,
    /// Call `NodePublishVolume` for a pod.
    Publish(String),
    /// Call `NodeUnpublishVolume` for a pod.
    Unpublish(String),
    /// Call `NodeUnstageVolume`.
    Unstage,
}

/// The steps that are allowed. Pods are named by their UIDs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllowedSteps<'a> {
    /// Whether volumes may be unmounted. This is false until the desired state is complete (KEP-3756, "Proposed
    /// `VolumeManager` startup", 4).
    pub(crate) may_unmount: bool,
    /// Pods whose processes may still use their volumes.
    pub(crate) running: &'a BTreeSet<String>,
    /// Pods that were started. The mounters of their volumes don't change any more (KEP-2857, "`DeferFSMount` field in
    /// Pod Spec").
    pub(crate) started: &'a BTreeSet<String>,
}

/// Returns the possible next steps of each volume, in the order of preference. A volume has one step at a time. The
/// other steps are alternatives while a preferred step waits for its retry.
pub(crate) fn plan(
    desired: &DesiredState,
    actual: &ActualState,
    allowed: AllowedSteps<'_>,
) -> Vec<(VolumeId, Vec<VolumeStep>)> {
    let ids: BTreeSet<&VolumeId> = desired
        .volumes
        .keys()
        .chain(actual.volumes.keys())
        .collect();
    let steps = ids.into_iter().map(|id| {
        let steps = next_steps(desired.volumes.get(id), actual.volumes.get(id), allowed);
        (id.clone(), steps)
    });
    steps.filter(|(_, steps)| !steps.is_empty()).collect()
}

fn next_steps(
    desired: Option<&DesiredVolume>,
    actual: Option<&ActualVolume>,
    allowed: AllowedSteps<'_>,
) -> Vec<VolumeStep> {
    let desired_mount = |pod: &String| desired.and_then(|desired| desired.mounts.get(pod));
    let mut steps = Vec::new();
    // Unpublishing comes first: a volume may have to be unpublished before another pod can get it.
    for (pod, mount) in actual.iter().flat_map(|actual| &actual.mounts) {
        let is_running = allowed.running.contains(pod);
        let is_unpublished = match desired_mount(pod) {
            None => allowed.may_unmount && !is_running,
            // Deferral was switched on or off before the pod was started.
            Some(spec) => {
                let has_wrong_mounter = match mount.mounter {
                    Mounter::Driver => spec.deferred,
                    Mounter::Deferred => !spec.deferred,
                    Mounter::Runtime => false,
                };
                has_wrong_mounter && allowed.may_unmount && !allowed.started.contains(pod)
            }
        };
        if is_unpublished {
            steps.push(VolumeStep::Unpublish(pod.clone()));
        }
    }
    let staged = actual.and_then(|actual| actual.staged);
    for (pod, mount) in desired.iter().flat_map(|desired| &desired.mounts) {
        let current = actual.and_then(|actual| actual.mounts.get(pod));
        let is_unpublished = steps.contains(&VolumeStep::Unpublish(pod.clone()));
        if is_unpublished || current.is_some_and(|current| current.certainty == Certainty::Certain)
        {
            continue;
        }
        let is_ephemeral = mount.volume.lifecycle == Lifecycle::Ephemeral;
        if is_ephemeral || staged == Some(Certainty::Certain) {
            steps.push(VolumeStep::Publish(pod.clone()));
        } else if !steps.contains(&VolumeStep::Stage) {
            steps.push(VolumeStep::Stage);
        }
    }
    let is_unpublished = actual.is_some_and(|actual| actual.mounts.is_empty());
    if desired.is_none() && is_unpublished && staged.is_some() && allowed.may_unmount {
        steps.push(VolumeStep::Unstage);
    }
    steps
}
