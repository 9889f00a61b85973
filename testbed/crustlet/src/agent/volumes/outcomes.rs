//! The outcomes of operations on volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{VolumeDone, Volumes};
use crate::objects::Pod;
use crate::operations::{FailedOperation, Published};
use crate::volumes::actual::{ActualMount, Certainty, Mounter};
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::{Lifecycle, MountSpec, VolumeId};

impl Volumes {
    /// Takes the outcome of an operation.
    pub(crate) fn take(&mut self, done: VolumeDone, pods: &BTreeMap<String, Arc<Pod>>) {
        let VolumeDone {
            id,
            step,
            mount,
            result,
        } = done;
        self.under_way.remove(&id);
        let key = (id, step);
        match result {
            Ok(published) => {
                self.backoff.succeed(&key);
                self.failed.remove(&key);
                self.succeeded(&key, mount.as_deref(), published);
            }
            Err(FailedOperation {
                error,
                is_uncertain,
                mounter,
            }) => {
                let pause = self.backoff.fail(&key, Instant::now());
                if is_uncertain {
                    self.uncertain(&key, mount.as_deref());
                }
                if let (VolumeStep::Publish(pod), Some(mounter)) = (&key.1, mounter) {
                    self.mounted_otherwise(&key.0, pod, mounter);
                }
                let told = crust_state::sentence(&error);
                let told = format!("{} : {told}", self.what(&key, mount.as_deref()));
                tracing::warn!("{told}; the next attempt is in {} ms", pause.as_millis());
                for pod in self.concerned(&key).iter().filter_map(|uid| pods.get(uid)) {
                    self.context
                        .events
                        .warning(pod.as_ref(), reason(&key.1), told.clone());
                }
                self.failed.insert(key, told);
            }
        }
        self.actual.remove_unused();
    }

    fn succeeded(
        &mut self,
        (id, step): &(VolumeId, VolumeStep),
        mount: Option<&MountSpec>,
        published: Option<Published>,
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

    /// Records that a step has failed half way, so that its result is unknown.
    pub(super) fn uncertain(
        &mut self,
        (id, step): &(VolumeId, VolumeStep),
        spec: Option<&MountSpec>,
    ) {
        let there = self.actual.volumes.get_mut(id);
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
            // Half of it may be gone: whoever wants it again has it made anew.
            (VolumeStep::Unpublish(pod), _) => {
                if let Some(mount) = there.and_then(|it| it.mounts.get_mut(pod)) {
                    mount.certainty = Certainty::Uncertain;
                }
            }
            (VolumeStep::Unstage, _) => {
                if let Some(volume) = there {
                    volume.staged = Some(Certainty::Uncertain);
                }
            }
            (VolumeStep::Stage | VolumeStep::Publish(_), None) => {}
        }
    }

    /// Corrects the mounter of a pod's volume, after an attempt that found another mounter than requested.
    fn mounted_otherwise(&mut self, id: &VolumeId, pod: &str, mounter: Mounter) {
        let volume = self.actual.volumes.get_mut(id);
        if let Some(mount) = volume.and_then(|it| it.mounts.get_mut(pod)) {
            mount.mounter = mounter;
            mount.certainty = Certainty::Uncertain;
        }
    }

    /// The pods that a step is for, by their uids.
    fn concerned(&self, (id, step): &(VolumeId, VolumeStep)) -> Vec<String> {
        match step {
            VolumeStep::Publish(pod) | VolumeStep::Unpublish(pod) => vec![pod.clone()],
            VolumeStep::Stage => {
                let volume = self.desired.volumes.get(id);
                volume.map_or_else(Vec::new, |it| it.mounts.keys().cloned().collect())
            }
            VolumeStep::Unstage => Vec::new(),
        }
    }

    /// In kubelet's words.
    fn what(&self, (id, step): &(VolumeId, VolumeStep), mount: Option<&MountSpec>) -> String {
        let call = match step {
            VolumeStep::Stage => "MountVolume.MountDevice",
            VolumeStep::Publish(_) => "MountVolume.SetUp",
            VolumeStep::Unpublish(_) => "UnmountVolume.TearDown",
            VolumeStep::Unstage => "UnmountDevice",
        };
        let there = match step {
            VolumeStep::Unpublish(pod) => self.actual.mount(id, pod).map(|it| &it.directory),
            _ => mount.map(|it| &it.volume.directory),
        };
        let name = there.map_or_else(|| id.to_string(), Clone::clone);
        format!("{call} failed for volume {name:?}")
    }
}

fn reason(step: &VolumeStep) -> &'static str {
    match step {
        VolumeStep::Stage | VolumeStep::Publish(_) => "FailedMount",
        VolumeStep::Unpublish(_) | VolumeStep::Unstage => "FailedUnMount",
    }
}
