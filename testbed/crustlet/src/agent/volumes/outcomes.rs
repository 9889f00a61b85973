//! The outcomes of operations on volumes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{VolumeDone, Volumes};
use crate::objects::Pod;
use crate::operations::{Attempt, Published};
use crate::volumes::actual::{Certainty, Mount, Mounter};
use crate::volumes::plan::Step;
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
            Err(Attempt {
                error,
                has_begun,
                mounter,
            }) => {
                let pause = self.backoff.fail(&key, Instant::now());
                if has_begun {
                    self.uncertain(&key, mount.as_deref());
                }
                if let (Step::Publish(pod), Some(mounter)) = (&key.1, mounter) {
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
        self.actual.tidy();
    }

    fn succeeded(
        &mut self,
        (id, step): &(VolumeId, Step),
        mount: Option<&MountSpec>,
        published: Option<Published>,
    ) {
        match step {
            Step::Stage => {
                self.actual.entry(id, Lifecycle::Persistent).staged = Some(Certainty::Certain);
            }
            Step::Publish(pod) => {
                if let (Some(spec), Some(published)) = (mount, published) {
                    let volume = self.actual.entry(id, spec.volume.lifecycle);
                    let mount = Mount {
                        certainty: Certainty::Certain,
                        directory: spec.volume.directory.clone(),
                        mounter: published.mounter,
                        late: published.late,
                    };
                    volume.mounts.insert(pod.clone(), mount);
                }
            }
            Step::Unpublish(pod) => {
                if let Some(volume) = self.actual.volumes.get_mut(id) {
                    volume.mounts.remove(pod);
                }
            }
            Step::Unstage => {
                if let Some(volume) = self.actual.volumes.get_mut(id) {
                    volume.staged = None;
                }
            }
        }
    }

    /// Records that a step has failed half way, so that its result is unknown.
    pub(super) fn uncertain(&mut self, (id, step): &(VolumeId, Step), spec: Option<&MountSpec>) {
        let there = self.actual.volumes.get_mut(id);
        match (step, spec) {
            (Step::Stage, Some(spec)) => {
                let volume = self.actual.entry(id, spec.volume.lifecycle);
                volume.staged = volume.staged.or(Some(Certainty::Uncertain));
            }
            (Step::Publish(pod), Some(spec)) => {
                let volume = self.actual.entry(id, spec.volume.lifecycle);
                volume.mounts.entry(pod.clone()).or_insert_with(|| Mount {
                    certainty: Certainty::Uncertain,
                    directory: spec.volume.directory.clone(),
                    mounter: if spec.deferred {
                        Mounter::Deferred
                    } else {
                        Mounter::Driver
                    },
                    late: None,
                });
            }
            // Half of it may be gone: whoever wants it again has it made anew.
            (Step::Unpublish(pod), _) => {
                if let Some(mount) = there.and_then(|it| it.mounts.get_mut(pod)) {
                    mount.certainty = Certainty::Uncertain;
                }
            }
            (Step::Unstage, _) => {
                if let Some(volume) = there {
                    volume.staged = Some(Certainty::Uncertain);
                }
            }
            (Step::Stage | Step::Publish(_), None) => {}
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
    fn concerned(&self, (id, step): &(VolumeId, Step)) -> Vec<String> {
        match step {
            Step::Publish(pod) | Step::Unpublish(pod) => vec![pod.clone()],
            Step::Stage => {
                let volume = self.desired.volumes.get(id);
                volume.map_or_else(Vec::new, |it| it.mounts.keys().cloned().collect())
            }
            Step::Unstage => Vec::new(),
        }
    }

    /// In kubelet's words.
    fn what(&self, (id, step): &(VolumeId, Step), mount: Option<&MountSpec>) -> String {
        let call = match step {
            Step::Stage => "MountVolume.MountDevice",
            Step::Publish(_) => "MountVolume.SetUp",
            Step::Unpublish(_) => "UnmountVolume.TearDown",
            Step::Unstage => "UnmountDevice",
        };
        let there = match step {
            Step::Unpublish(pod) => self.actual.mount(id, pod).map(|it| &it.directory),
            _ => mount.map(|it| &it.volume.directory),
        };
        let name = there.map_or_else(|| id.to_string(), Clone::clone);
        format!("{call} failed for volume {name:?}")
    }
}

fn reason(step: &Step) -> &'static str {
    match step {
        Step::Stage | Step::Publish(_) => "FailedMount",
        Step::Unpublish(_) | Step::Unstage => "FailedUnMount",
    }
}
