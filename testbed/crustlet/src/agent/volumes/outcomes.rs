//! Applies the results of operations to the actual state of the volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{VolumeStepResult, Volumes};
use crate::objects::Pod;
use crate::operations::{FailedOperation, PublishResult};
use crate::volumes::actual::{ActualMount, Certainty, Mounter};
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::{Lifecycle, MountSpec, VolumeId};

impl Volumes {
    /// Handles the result of an operation. `pods` has the pods' manifests by their UIDs.
    pub(crate) fn handle_result(
        &mut self,
        result: VolumeStepResult,
        pods: &BTreeMap<String, Arc<Pod>>,
    ) {
        let VolumeStepResult {
            id,
            step,
            mount,
            result,
        } = result;
        self.in_progress.remove(&id);
        let key = (id, step);
        match result {
            Ok(published) => {
                self.backoff.succeed(&key);
                self.failed.remove(&key);
                self.apply_success(&key, mount.as_deref(), published);
            }
            Err(FailedOperation {
                error,
                is_uncertain,
                mounter,
            }) => {
                let pause = self.backoff.fail(&key, Instant::now());
                if is_uncertain {
                    self.mark_uncertain(&key, mount.as_deref());
                }
                if let (VolumeStep::Publish(pod), Some(mounter)) = (&key.1, mounter) {
                    self.correct_mounter(&key.0, pod, mounter);
                }
                let error = crust_state::error_message(&error);
                let message = format!(
                    "{} : {error}",
                    self.describe_failure(&key, mount.as_deref())
                );
                tracing::warn!("{message}; retrying in {} ms", pause.as_millis());
                for pod in self
                    .affected_pods(&key)
                    .iter()
                    .filter_map(|uid| pods.get(uid))
                {
                    self.context.events.warning(
                        pod.as_ref(),
                        event_reason(&key.1),
                        message.clone(),
                    );
                }
                self.failed.insert(key, message);
            }
        }
        self.actual.remove_unused();
    }

    fn apply_success(
        &mut self,
        (id, step): &(VolumeId, VolumeStep),
        mount: Option<&MountSpec>,
        published: Option<PublishResult>,
    ) {
        match step {
            VolumeStep::Stage => {
                self.actual.entry(id, Lifecycle::Persistent).staged = Some(Certainty::Certain);
            }
            VolumeStep::Publish(pod) => {
                if let (Some(spec), Some(published)) = (mount, published) {
                    let volume = self.actual.entry(id, spec.volume.lifecycle);
                    let mount = ActualMount {
                        certainty: Certainty::Certain,
                        directory: spec.volume.directory.clone(),
                        mounter: published.mounter,
                        runtime_mount: published.runtime_mount,
                    };
                    volume.mounts.insert(pod.clone(), mount);
                }
            }
            VolumeStep::Unpublish(pod) => {
                if let Some(volume) = self.actual.volumes.get_mut(id) {
                    volume.mounts.remove(pod);
                }
            }
            VolumeStep::Unstage => {
                if let Some(volume) = self.actual.volumes.get_mut(id) {
                    volume.staged = None;
                }
            }
        }
    }

    /// Marks the volume of a step as uncertain: the step failed halfway, or is in progress.
    pub(super) fn mark_uncertain(
        &mut self,
        (id, step): &(VolumeId, VolumeStep),
        spec: Option<&MountSpec>,
    ) {
        let volume = self.actual.volumes.get_mut(id);
        match (step, spec) {
            (VolumeStep::Stage, Some(spec)) => {
                let volume = self.actual.entry(id, spec.volume.lifecycle);
                volume.staged = volume.staged.or(Some(Certainty::Uncertain));
            }
            (VolumeStep::Publish(pod), Some(spec)) => {
                let volume = self.actual.entry(id, spec.volume.lifecycle);
                volume
                    .mounts
                    .entry(pod.clone())
                    .or_insert_with(|| ActualMount {
                        certainty: Certainty::Uncertain,
                        directory: spec.volume.directory.clone(),
                        mounter: if spec.deferred {
                            Mounter::Deferred
                        } else {
                            Mounter::Driver
                        },
                        runtime_mount: None,
                    });
            }
            // Part of the mount may be gone already. If the volume is desired again, it is published again.
            (VolumeStep::Unpublish(pod), _) => {
                if let Some(mount) = volume.and_then(|volume| volume.mounts.get_mut(pod)) {
                    mount.certainty = Certainty::Uncertain;
                }
            }
            (VolumeStep::Unstage, _) => {
                if let Some(volume) = volume {
                    volume.staged = Some(Certainty::Uncertain);
                }
            }
            (VolumeStep::Stage | VolumeStep::Publish(_), None) => {}
        }
    }

    /// Sets the mounter of a pod's volume, after an attempt found a mounter other than the requested one.
    fn correct_mounter(&mut self, id: &VolumeId, pod: &str, mounter: Mounter) {
        let volume = self.actual.volumes.get_mut(id);
        if let Some(mount) = volume.and_then(|volume| volume.mounts.get_mut(pod)) {
            mount.mounter = mounter;
            mount.certainty = Certainty::Uncertain;
        }
    }

    /// Returns the UIDs of the pods that get an event about a failed step.
    fn affected_pods(&self, (id, step): &(VolumeId, VolumeStep)) -> Vec<String> {
        match step {
            VolumeStep::Publish(pod) | VolumeStep::Unpublish(pod) => vec![pod.clone()],
            VolumeStep::Stage => {
                let volume = self.desired.volumes.get(id);
                volume.map_or_else(Vec::new, |volume| volume.mounts.keys().cloned().collect())
            }
            VolumeStep::Unstage => Vec::new(),
        }
    }

    /// Describes a failed step in kubelet's words.
    fn describe_failure(
        &self,
        (id, step): &(VolumeId, VolumeStep),
        mount: Option<&MountSpec>,
    ) -> String {
        let call = match step {
            VolumeStep::Stage => "MountVolume.MountDevice",
            VolumeStep::Publish(_) => "MountVolume.SetUp",
            VolumeStep::Unpublish(_) => "UnmountVolume.TearDown",
            VolumeStep::Unstage => "UnmountDevice",
        };
        let directory = match step {
            VolumeStep::Unpublish(pod) => self.actual.mount(id, pod).map(|mount| &mount.directory),
            _ => mount.map(|mount| &mount.volume.directory),
        };
        let name = directory.map_or_else(|| id.to_string(), Clone::clone);
        format!("{call} failed for volume {name:?}")
    }
}

/// Returns kubelet's reason for the event about a failed step.
fn event_reason(step: &VolumeStep) -> &'static str {
    match step {
        VolumeStep::Stage | VolumeStep::Publish(_) => "FailedMount",
        VolumeStep::Unpublish(_) | VolumeStep::Unstage => "FailedUnMount",
    }
}
