//! From what there is to what is wanted: one step a volume.

use std::collections::BTreeSet;

use super::actual::{Actual, ActualVolume, Certainty};
use super::desired::{Desired, DesiredVolume};
use super::spec::{Lifecycle, VolumeId};

/// A step of a volume's.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// What may be done at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed<'a> {
    /// Whether all that is wanted is known. Until then nothing is taken back (KEP-3756, "Proposed `VolumeManager`
    /// startup", 4).
    pub(crate) unmounts: bool,
    /// Pods whose processes may still use their volumes.
    pub(crate) running: &'a BTreeSet<String>,
}

/// The next step of each volume that needs one.
pub(crate) fn plan(
    desired: &Desired,
    actual: &Actual,
    allowed: Allowed<'_>,
) -> Vec<(VolumeId, Step)> {
    let ids: BTreeSet<&VolumeId> = desired
        .volumes
        .keys()
        .chain(actual.volumes.keys())
        .collect();
    let steps = ids.into_iter().filter_map(|id| {
        let step = next(desired.volumes.get(id), actual.volumes.get(id), allowed)?;
        Some((id.clone(), step))
    });
    steps.collect()
}

fn next(
    desired: Option<&DesiredVolume>,
    actual: Option<&ActualVolume>,
    allowed: Allowed<'_>,
) -> Option<Step> {
    let is_wanted = |pod: &String| desired.is_some_and(|it| it.mounts.contains_key(pod));
    if allowed.unmounts
        && let Some(actual) = actual
    {
        // What goes goes first: the one that comes may be refused because of it.
        let mut mounts = actual.mounts.keys();
        if let Some(pod) = mounts.find(|pod| !is_wanted(pod) && !allowed.running.contains(*pod)) {
            return Some(Step::Unpublish(pod.clone()));
        }
    }
    if let Some(desired) = desired {
        let there = |pod: &String| {
            actual
                .and_then(|it| it.mounts.get(pod))
                .map(|it| it.certainty)
        };
        let missing = desired
            .mounts
            .iter()
            .find(|(pod, _)| there(pod) != Some(Certainty::Certain));
        let (pod, mount) = missing?;
        let is_staged = actual.and_then(|it| it.staged) == Some(Certainty::Certain);
        return Some(
            if is_staged || mount.volume.lifecycle == Lifecycle::Ephemeral {
                Step::Publish(pod.clone())
            } else {
                Step::Stage
            },
        );
    }
    let actual = actual?;
    (allowed.unmounts && actual.mounts.is_empty() && actual.staged.is_some())
        .then_some(Step::Unstage)
}
