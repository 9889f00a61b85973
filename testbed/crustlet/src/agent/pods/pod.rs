//! The agent's knowledge of one pod.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::PodStatus;

use crate::events::{Events, Regarding};
use crate::objects::{Kind, Name, Pod};
use crate::pods::failures::{Failure, Failures};
use crate::pods::observed::Observed;
use crate::pods::restart::{Outcome, Policy, outcome};
use crate::pods::{End, PodStep, Subject};

/// The agent's knowledge of a pod.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what is written, what was told and what was begun know nothing of each other"
)]
pub(crate) struct KnownPod {
    /// The pod's manifest. That of a running pod stays, whatever is written later.
    pub(crate) pod: Option<Arc<Pod>>,
    /// Whether that was found on the disk: it had begun then.
    pub(super) is_restored: bool,
    /// Whether nothing was left of that: what is written counts, as soon as it can be read.
    pub(super) is_past: bool,
    /// The volumes that its manifest has deferred.
    said: Option<BTreeSet<String>>,
    /// Whether its manifest is there.
    pub(crate) is_written: bool,
    /// Whether that says that it is to end.
    pub(super) is_deleted: bool,
    /// The pod's state in the container runtime.
    pub(crate) observed: Option<Observed>,
    /// The failures of its next steps.
    pub(crate) failures: Failures,
    /// The sandboxes for which the runtime handler was told of volumes.
    pub(super) told: BTreeSet<String>,
    pub(super) at: PodProgress,
    /// Counts steps' beginnings and ends: what is listed meanwhile is old.
    pub(super) age: u64,
    /// Since when its manifest isn't there.
    pub(crate) gone: Option<SystemTime>,
    /// `status`, as it was shown last.
    pub(crate) status: Option<PodStatus>,
    /// Whether its author was warned of a change that is ignored.
    pub(super) is_told: bool,
    /// The last request to the container runtime to end it.
    pub(super) stop: Option<End>,
    /// Whether it was begun to end it: it does, whatever is written since.
    pub(super) is_ending: bool,
}

/// The progress of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PodProgress {
    /// The observed state is current.
    #[default]
    Rest,
    /// A step is under way.
    Step,
    /// One has ended, and what there is since isn't known.
    Unseen,
    /// Nothing is left of it but its manifest.
    Over,
}

impl KnownPod {
    /// Takes the manifest that is written now.
    pub(super) fn take(&mut self, pod: &Arc<Pod>, said: BTreeSet<String>, events: &Events) {
        self.is_deleted = pod.is_deleted();
        let is_past = std::mem::take(&mut self.is_past);
        let said_before = self.said.replace(said);
        let Some(before) = self.pod.as_ref().filter(|_| !is_past) else {
            self.pod = Some(Arc::clone(pod));
            return;
        };
        let is_fixed = self.has_begun();
        if pod.may_replace(before) && !(is_fixed && pod.deferred != before.deferred) {
            self.pod = Some(Arc::clone(pod));
            return;
        }
        if self.is_ending {
            return;
        }
        let is_same = pod.has_same_spec(before);
        // That a policy has another mind since is nobody's mistake.
        let said = self.said.as_ref();
        let asks = match &said_before {
            Some(_) => said != said_before.as_ref(),
            None => said.is_some_and(|said| !said.is_subset(&before.deferred)),
        };
        if (asks || !is_same) && !std::mem::replace(&mut self.is_told, true) {
            let message = match (is_same, is_fixed) {
                (true, true) => {
                    "it has begun, and who mounts its volumes is fixed since (deferFSMount); hint: delete it first"
                }
                (true, false) => {
                    "deferFSMount goes from false to true alone, and it stays what it was; hint: delete it first"
                }
                (false, _) => {
                    "its manifest is another one now, and it stays what it was; hint: delete it first"
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

    /// Whether it is wanted, and wasn't told to end.
    pub(crate) fn is_to_run(&self) -> bool {
        self.is_written && self.pod.is_some() && !self.is_ending && !self.is_deleted
    }

    /// Whether the container runtime has something of it, which may run or not: how its volumes are mounted is fixed
    /// since (KEP-2857, "`DeferFSMount` field in Pod Spec").
    pub(crate) fn has_begun(&self) -> bool {
        self.is_restored || self.at != PodProgress::Rest || self.observed.is_some()
    }

    /// Whether it ends by itself.
    pub(super) fn ends(&self) -> bool {
        let pod = self.pod.as_deref();
        pod.is_some_and(|pod| Policy::of(pod) != Policy::Always)
    }

    /// How it ended, if it did.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        outcome(self.pod.as_ref()?, self.observed.as_ref()?)
    }

    /// Its name, from wherever it is known.
    pub(crate) fn name(&self) -> Option<Name> {
        let written = self.pod.as_ref().map(|it| it.name.clone());
        written.or_else(|| self.observed.as_ref().map(|it| it.name.clone()))
    }

    /// Returns the name of the pod that owns what exists by its UID.
    pub(super) fn owner(&self) -> Option<Name> {
        let observed = self.observed.as_ref().map(|it| it.name.clone());
        observed.or_else(|| self.pod.as_ref().map(|it| it.name.clone()))
    }

    /// Notes that the removal of its remains failed, which is retried later.
    pub(super) fn fail(&mut self, message: String) {
        let failure = Failure {
            reason: "FailedCleanup",
            message,
            is_pull: false,
        };
        self.failures.fail(Subject::End, failure, Instant::now());
    }

    pub(super) fn regarding(&self, uid: &str) -> Regarding {
        let unknown = || Name::new("", uid);
        Regarding {
            kind: Kind::Pod,
            name: self.name().unwrap_or_else(unknown),
            uid: uid.to_owned(),
        }
    }

    /// A step is begun.
    pub(super) fn begin(&mut self, step: &PodStep) {
        self.at = PodProgress::Step;
        self.age += 1;
        self.stop = match step {
            PodStep::End(end @ End::StopPod { .. }) => Some(end.clone()),
            _ => None,
        };
    }

    /// To be asked besides a stop that is under way, where the pod is given less time by now: as kubelet does. The
    /// sandboxes go as they were to, after the containers.
    pub(super) fn hasten(&mut self) -> Option<End> {
        let now = self.grace();
        let is_under_way = self.at == PodProgress::Step && self.is_ending;
        let End::StopPod {
            containers, grace, ..
        } = self.stop.as_mut().filter(|_| is_under_way)?
        else {
            return None;
        };
        if now >= *grace {
            return None;
        }
        *grace = now;
        Some(End::StopPod {
            containers: containers.clone(),
            sandboxes: Vec::new(),
            grace: now,
        })
    }

    pub(super) fn grace(&self) -> Duration {
        let written = self.pod.as_ref().map(|pod| {
            let seconds = u64::try_from(pod.grace()).unwrap_or_default();
            Duration::from_secs(seconds)
        });
        let observed = || self.observed.as_ref().map(Observed::grace);
        written.or_else(observed).unwrap_or_default()
    }
}
