//! The desired and the actual state of all volumes, and the operations that reconcile them.

mod begin;
mod outcomes;
mod queries;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Completion;
use crate::objects::{Objects, Pod};
use crate::operations::{Context, Publication, ReconstructedState, UnreadableVolume};
use crate::volumes::actual::{ActualMount, ActualState, Certainty};
use crate::volumes::backoff::Backoff;
use crate::volumes::desired::{DesiredState, VolumeHolders, VolumeProblem};
use crate::volumes::plan::{AllowedSteps, VolumeStep, plan};
use crate::volumes::spec::{Lifecycle, ResolveError, VolumeId};

pub(crate) use begin::VolumeStepResult;

/// The time for which a claim may be unbound before an event is emitted about its pod.
const BINDING_GRACE_PERIOD: Duration = Duration::from_secs(3);

/// The operation in progress on a volume. A volume has at most one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OngoingOperation {
    /// A step from the actual to the desired state.
    Step(VolumeStep),
    /// A CSI call for the volume's claim, with the name of the method.
    ClaimCall(&'static str),
}

/// All volumes of the node.
#[derive(Debug)]
pub(crate) struct Volumes {
    context: Context,
    completions: mpsc::UnboundedSender<Completion>,
    desired: DesiredState,
    actual: ActualState,
    backoff: Backoff<(VolumeId, VolumeStep)>,
    in_progress: BTreeMap<VolumeId, OngoingOperation>,
    /// The error of each step whose last attempt failed.
    failed: BTreeMap<(VolumeId, VolumeStep), String>,
    /// The problems of pods' volumes, by the pods' UIDs and the volumes' names.
    problems: BTreeMap<(String, String), ReportedProblem>,
    /// Pods that may have a volume according to an incomplete record.
    suspected: VolumeHolders,
}

/// A problem of a pod's volume, and whether an event was emitted about it.
#[derive(Debug)]
struct ReportedProblem {
    problem: VolumeProblem,
    since: Instant,
    is_reported: bool,
}

impl ReportedProblem {
    fn new(problem: &VolumeProblem, since: Instant) -> Self {
        Self {
            problem: problem.clone(),
            since,
            is_reported: false,
        }
    }

    /// Returns whether an event about the problem is due. An event is due only once for each problem. A claim that was
    /// just created is given time to be bound.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_unbound = matches!(
            self.problem,
            VolumeProblem::Unresolved(ResolveError::ClaimNotBound(_))
        );
        let is_early = is_unbound && now.duration_since(self.since) < BINDING_GRACE_PERIOD;
        !is_early && !std::mem::replace(&mut self.is_reported, true)
    }
}

impl Volumes {
    pub(crate) fn new(context: Context, completions: mpsc::UnboundedSender<Completion>) -> Self {
        Self {
            context,
            completions,
            desired: DesiredState::default(),
            actual: ActualState::default(),
            backoff: Backoff::default(),
            in_progress: BTreeMap::new(),
            failed: BTreeMap::new(),
            problems: BTreeMap::new(),
            suspected: VolumeHolders::new(),
        }
    }

    pub(crate) const fn desired(&self) -> &DesiredState {
        &self.desired
    }

    pub(crate) const fn actual(&self) -> &ActualState {
        &self.actual
    }

    pub(crate) const fn in_progress(&self) -> &BTreeMap<VolumeId, OngoingOperation> {
        &self.in_progress
    }

    /// Reserves a volume for a call for its claim, until [`Self::release`]. Returns false if another operation is in
    /// progress.
    pub(super) fn reserve(&mut self, id: &VolumeId, call: &'static str) -> bool {
        let is_free = !self.in_progress.contains_key(id);
        if is_free {
            self.in_progress
                .insert(id.clone(), OngoingOperation::ClaimCall(call));
        }
        is_free
    }

    /// Ends the reservation of a volume.
    pub(super) fn release(&mut self, id: &VolumeId) {
        self.in_progress.remove(id);
    }

    /// Returns the error of each step whose last attempt failed.
    pub(crate) const fn failed(&self) -> &BTreeMap<(VolumeId, VolumeStep), String> {
        &self.failed
    }

    /// Sets the pods that may have a volume according to an incomplete record.
    pub(crate) fn set_suspected(&mut self, suspected: VolumeHolders) {
        self.suspected = suspected;
    }

    /// Adds the volumes that were found on the disk as uncertain (KEP-3756). Volumes that are known already stay as
    /// they are.
    pub(crate) fn add_from_disk(&mut self, found: &ReconstructedState) {
        for id in &found.staged {
            let volume = self.actual.entry(id, Lifecycle::Persistent);
            volume.staged = volume.staged.or(Some(Certainty::Uncertain));
        }
        for (publication, lifecycle) in &found.published {
            self.add_uncertain(publication, *lifecycle);
        }
    }

    /// Adds a publication as uncertain, unless it is known already.
    pub(crate) fn add_uncertain(&mut self, publication: &Publication, lifecycle: Lifecycle) {
        let volume = self.actual.entry(&publication.id, lifecycle);
        let mounts = &mut volume.mounts;
        mounts
            .entry(publication.pod.clone())
            .or_insert_with(|| ActualMount {
                certainty: Certainty::Uncertain,
                directory: publication.directory.clone(),
                mounter: publication.mounter,
                runtime_mount: None,
            });
    }

    /// Returns the certainty of the volume that an unreadable directory belongs to. `None` if no known volume has this
    /// directory.
    pub(crate) fn certainty_of(&self, unreadable: &UnreadableVolume) -> Option<Certainty> {
        let layout = &self.context.layout;
        self.actual.volumes.iter().find_map(|(id, volume)| {
            let staged = volume
                .staged
                .filter(|_| layout.staged(id) == unreadable.path);
            let mut mounts = volume.mounts.iter();
            let is_in_directory = |(pod, mount): &(&String, &ActualMount)| {
                layout.volume(pod, &mount.directory) == unreadable.path
            };
            staged.or_else(|| {
                mounts
                    .find(is_in_directory)
                    .map(|(_, mount)| mount.certainty)
            })
        })
    }

    /// Returns whether a desired volume needs an unreadable directory.
    pub(crate) fn needs(&self, unreadable: &UnreadableVolume) -> bool {
        let layout = &self.context.layout;
        let mut volumes = self.desired.volumes.iter();
        volumes.any(|(id, volume)| {
            let mut mounts = volume.mounts.iter();
            layout.staged(id) == unreadable.path
                || mounts.any(|(pod, mount)| {
                    layout.volume(pod, &mount.volume.directory) == unreadable.path
                })
        })
    }

    /// Sets the pods whose volumes are desired, and emits an event about each new problem of such a volume.
    pub(crate) fn set_desired(&mut self, objects: &Objects, pods: &[Arc<Pod>], now: Instant) {
        let mut holders = self.actual.holders();
        for (id, pods) in &self.suspected {
            holders
                .entry(id.clone())
                .or_default()
                .extend(pods.iter().cloned());
        }
        self.desired = DesiredState::new(objects, pods, &holders, &self.desired);
        for pod in pods {
            let problems = self.desired.problems.get(&pod.uid);
            for (volume, problem) in problems.into_iter().flatten() {
                let key = (pod.uid.clone(), volume.clone());
                let reported = self.problems.entry(key);
                let reported = reported.or_insert_with(|| ReportedProblem::new(problem, now));
                if reported.problem != *problem {
                    *reported = ReportedProblem::new(problem, now);
                }
                if reported.is_due(now) {
                    let message =
                        format!("MountVolume.SetUp failed for volume {volume:?} : {problem}");
                    let events = &self.context.events;
                    events.warning(pod.as_ref(), "FailedMount", message);
                }
            }
        }
        let problems = &self.desired.problems;
        self.problems.retain(|(uid, volume), _| {
            let current = problems.get(uid);
            current.is_some_and(|problems| problems.contains_key(volume))
        });
    }

    /// Starts the steps that can be started now. Returns how long to wait before the next retry.
    pub(crate) fn reconcile(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        allowed: AllowedSteps<'_>,
        now: Instant,
    ) -> Option<Duration> {
        let plan = plan(&self.desired, &self.actual, allowed);
        let mut planned = BTreeSet::new();
        let mut pause: Option<Duration> = None;
        for (id, steps) in plan {
            let is_free = !self.in_progress.contains_key(&id);
            let mut first = None;
            for step in steps {
                let key = (id.clone(), step);
                match self.backoff.remaining(&key, now) {
                    Some(remaining) => {
                        pause = Some(pause.map_or(remaining, |pause| pause.min(remaining)));
                    }
                    None if first.is_none() => first = Some(key.1.clone()),
                    None => {}
                }
                planned.insert(key);
            }
            if let Some(step) = first.filter(|_| is_free) {
                self.begin(objects, pods, (id, step), allowed.started);
            }
        }
        self.backoff.retain(|key| planned.contains(key));
        let in_progress = &self.in_progress;
        self.failed
            .retain(|key, _| planned.contains(key) || is_step(in_progress.get(&key.0), &key.1));
        pause
    }

    /// Retries failed steps at once for the drivers that registered, disconnected or were replaced.
    pub(crate) fn drivers_changed(&mut self, changed: &BTreeSet<String>) {
        self.backoff.retain(|(id, _)| !changed.contains(&id.driver));
    }
}

fn is_step(operation: Option<&OngoingOperation>, step: &VolumeStep) -> bool {
    matches!(operation, Some(OngoingOperation::Step(ongoing)) if ongoing == step)
}
