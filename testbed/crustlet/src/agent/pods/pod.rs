//! The agent's state of one pod.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::PodStatus;

use crate::events::{Events, Regarding};
use crate::objects::{Kind, Name, Pod};
use crate::pods::failures::{Failure, Failures};
use crate::pods::observed::ObservedPod;
use crate::pods::restart::{PodOutcome, RestartPolicy, outcome};
use crate::pods::{EndStep, PodStep, StepSubject};

/// The agent's state of a pod.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the manifest, the steps and the warnings are independent of each other"
)]
pub(crate) struct KnownPod {
    /// The pod's manifest. While the pod runs, a different manifest doesn't replace it.
    pub(crate) pod: Option<Arc<Pod>>,
    /// Whether the manifest was read from the pod's directory: the pod had started before crustlet did.
    pub(super) is_restored: bool,
    /// Whether only the directory is left of the pod. The current manifest then replaces the manifest that was read
    /// from the directory, even if the two differ.
    pub(super) is_stale: bool,
    /// The volumes that are deferred in the current manifest, before the admission policy.
    manifest_deferred: Option<BTreeSet<String>>,
    pub(crate) has_manifest: bool,
    /// Whether the manifest has a deletion timestamp.
    pub(super) is_deleted: bool,
    /// The pod in the container runtime.
    pub(crate) observed: Option<ObservedPod>,
    pub(crate) failures: Failures,
    /// The sandboxes in which the runtime handler has mounted the pod's volumes (KEP-2857's earlier draft).
    pub(super) published_sandboxes: BTreeSet<String>,
    pub(super) progress: PodProgress,
    /// The number of starts and ends of steps. A relist that began at another generation is outdated.
    pub(super) generation: u64,
    /// The time at which the pod lost its manifest. `None` while it has one.
    pub(crate) without_manifest_since: Option<SystemTime>,
    /// The `status` that was computed last.
    pub(crate) status: Option<PodStatus>,
    /// Whether an event warned about a change of the manifest that can't be applied.
    pub(super) is_warned: bool,
    /// The stop that was requested last.
    pub(super) last_stop: Option<EndStep>,
    /// Whether the agent has begun to end the pod. A new manifest doesn't stop that.
    pub(super) is_ending: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PodProgress {
    /// No step is in progress, and the observed state is current.
    #[default]
    Idle,
    StepRunning,
    /// The last step has ended, but the state after it couldn't be read.
    Unknown,
    /// Nothing but the manifest is left.
    CleanedUp,
}

impl KnownPod {
    /// Applies the current manifest, as far as a started pod can change. `manifest_deferred` has the volumes that the
    /// manifest defers, before the admission policy is applied.
    pub(super) fn set_manifest(
        &mut self,
        pod: &Arc<Pod>,
        manifest_deferred: BTreeSet<String>,
        events: &Events,
    ) {
        self.is_deleted = pod.is_deleted();
        let is_stale = std::mem::take(&mut self.is_stale);
        let deferred_before = self.manifest_deferred.replace(manifest_deferred);
        let Some(before) = self.pod.as_ref().filter(|_| !is_stale) else {
            self.pod = Some(Arc::clone(pod));
            return;
        };
        let is_fixed = self.has_started();
        if pod.may_replace(before) && !(is_fixed && pod.deferred != before.deferred) {
            self.pod = Some(Arc::clone(pod));
            return;
        }
        if self.is_ending {
            return;
        }
        let is_same = pod.has_same_spec(before);
        // A difference that only the admission policy makes isn't warned about.
        let deferred = self.manifest_deferred.as_ref();
        let is_deferral_changed = match &deferred_before {
            Some(_) => deferred != deferred_before.as_ref(),
            None => deferred.is_some_and(|deferred| !deferred.is_subset(&before.deferred)),
        };
        if (is_deferral_changed || !is_same) && !std::mem::replace(&mut self.is_warned, true) {
            let message = match (is_same, is_fixed) {
                (true, true) => {
                    "deferFSMount can't change after the pod has started; hint: recreate the pod"
                }
                (true, false) => {
                    "deferFSMount can't change from true to false; hint: recreate the pod"
                }
                (false, _) => {
                    "the manifest has changed, but an existing pod can't be updated; hint: recreate the pod"
                }
            };
            events.warning(pod.as_ref(), "FailedUpdate", message);
        }
        let mut kept = Pod::clone(before);
        kept.metadata.clone_from(&pod.metadata);
        if !is_fixed {
            kept.deferred.extend(pod.deferred.iter().cloned());
        }
        self.pod = Some(Arc::new(kept));
    }

    /// Returns whether the pod has a manifest, isn't deleted and isn't ending.
    pub(crate) fn should_run(&self) -> bool {
        self.has_manifest && self.pod.is_some() && !self.is_ending && !self.is_deleted
    }

    /// Returns whether the pod may have sandboxes or containers, running or not. From then on the mounter of its
    /// volumes doesn't change (KEP-2857, "`DeferFSMount` field in Pod Spec").
    pub(crate) fn has_started(&self) -> bool {
        self.is_restored || self.progress != PodProgress::Idle || self.observed.is_some()
    }

    /// Returns whether the restart policy lets the pod end by itself.
    pub(super) fn may_complete(&self) -> bool {
        let pod = self.pod.as_deref();
        pod.is_some_and(|pod| RestartPolicy::from_pod(pod) != RestartPolicy::Always)
    }

    /// Returns how the pod ended, or `None` if it hasn't.
    pub(crate) fn outcome(&self) -> Option<PodOutcome> {
        outcome(self.pod.as_ref()?, self.observed.as_ref()?)
    }

    /// Returns the name in the pod's manifest, or else the name in the container runtime.
    pub(crate) fn name(&self) -> Option<Name> {
        let from_manifest = self.pod.as_ref().map(|pod| pod.name.clone());
        from_manifest.or_else(|| self.observed.as_ref().map(|observed| observed.name.clone()))
    }

    /// Returns the name of the pod that has this UID now: the name in the container runtime, or else the name in the
    /// manifest.
    pub(super) fn owner(&self) -> Option<Name> {
        let observed = self.observed.as_ref().map(|observed| observed.name.clone());
        observed.or_else(|| self.pod.as_ref().map(|pod| pod.name.clone()))
    }

    /// Records that a part of the cleanup failed. The cleanup is retried later.
    pub(super) fn record_cleanup_failure(&mut self, message: String) {
        let failure = Failure {
            reason: "FailedCleanup",
            message,
            is_pull: false,
        };
        self.failures
            .fail(StepSubject::End, failure, Instant::now());
    }

    pub(super) fn regarding(&self, uid: &str) -> Regarding {
        let unknown = || Name::new("", uid);
        Regarding {
            kind: Kind::Pod,
            name: self.name().unwrap_or_else(unknown),
            uid: uid.to_owned(),
        }
    }

    /// Records the start of a step.
    pub(super) fn begin(&mut self, step: &PodStep) {
        self.progress = PodProgress::StepRunning;
        self.generation += 1;
        self.last_stop = match step {
            PodStep::End(end @ EndStep::StopPod { .. }) => Some(end.clone()),
            _ => None,
        };
    }

    /// Returns a second stop if a stop is in progress and the grace period has become shorter since it began. kubelet
    /// does the same. The second stop doesn't stop the sandboxes: the first stop does so after the containers have
    /// ended.
    pub(super) fn shortened_stop(&mut self) -> Option<EndStep> {
        let shortened = self.grace();
        let is_in_progress = self.progress == PodProgress::StepRunning && self.is_ending;
        let EndStep::StopPod {
            containers, grace, ..
        } = self.last_stop.as_mut().filter(|_| is_in_progress)?
        else {
            return None;
        };
        if shortened >= *grace {
            return None;
        }
        *grace = shortened;
        Some(EndStep::StopPod {
            containers: containers.clone(),
            sandboxes: Vec::new(),
            grace: shortened,
        })
    }

    /// Returns how long the containers have to end.
    pub(super) fn grace(&self) -> Duration {
        let from_manifest = self.pod.as_ref().map(|pod| {
            let seconds = u64::try_from(pod.grace()).unwrap_or_default();
            Duration::from_secs(seconds)
        });
        let observed = || self.observed.as_ref().map(ObservedPod::grace);
        from_manifest.or_else(observed).unwrap_or_default()
    }
}
