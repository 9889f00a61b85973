//! The desired and the actual volumes, and the operations from one to the other.

mod begin;
mod outcomes;
mod queries;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Done;
use crate::objects::{Objects, Pod};
use crate::operations::{Context, Publication, ReconstructedState, UnreadableVolume};
use crate::volumes::actual::{ActualMount, ActualState, Certainty};
use crate::volumes::backoff::Backoff;
use crate::volumes::desired::{DesiredState, VolumeHolders, VolumeProblem};
use crate::volumes::plan::{AllowedSteps, VolumeStep, plan};
use crate::volumes::spec::{Lifecycle, ResolveError, VolumeId};

pub(crate) use begin::VolumeDone;

/// How long a claim is given to be bound until its pod is told that it isn't.
const SOON: Duration = Duration::from_secs(3);

/// The operation under way on a volume, one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Busy {
    /// A step from what there is to what is wanted.
    Step(VolumeStep),
    /// For its claim, or because that is gone: CSI's call.
    Claim(&'static str),
}

/// All volumes of the node.
#[derive(Debug)]
pub(crate) struct Volumes {
    context: Context,
    done: mpsc::UnboundedSender<Done>,
    desired: DesiredState,
    actual: ActualState,
    backoff: Backoff<(VolumeId, VolumeStep)>,
    under_way: BTreeMap<VolumeId, Busy>,
    /// The errors of the last operations that failed.
    failed: BTreeMap<(VolumeId, VolumeStep), String>,
    /// The problems that were reported to pods.
    told: BTreeMap<(String, String), ReportedProblem>,
    /// Pods that may have a volume, which isn't known for certain.
    suspected: VolumeHolders,
}

/// A problem of a pod's volume, and whether it was reported.
#[derive(Debug)]
struct ReportedProblem {
    problem: VolumeProblem,
    since: Instant,
    is_done: bool,
}

impl ReportedProblem {
    fn new(problem: &VolumeProblem, since: Instant) -> Self {
        Self {
            problem: problem.clone(),
            since,
            is_done: false,
        }
    }

    /// Whether the pod is to be told now, once. A claim that was just written is bound in a moment.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_unbound = matches!(
            self.problem,
            VolumeProblem::Unresolved(ResolveError::ClaimNotBound(_))
        );
        let is_early = is_unbound && now.duration_since(self.since) < SOON;
        !is_early && !std::mem::replace(&mut self.is_done, true)
    }
}

impl Volumes {
    /// None are known yet.
    pub(crate) fn new(context: Context, done: mpsc::UnboundedSender<Done>) -> Self {
        Self {
            context,
            done,
            desired: DesiredState::default(),
            actual: ActualState::default(),
            backoff: Backoff::default(),
            under_way: BTreeMap::new(),
            failed: BTreeMap::new(),
            told: BTreeMap::new(),
            suspected: VolumeHolders::new(),
        }
    }

    /// Returns the desired volumes.
    pub(crate) const fn desired(&self) -> &DesiredState {
        &self.desired
    }

    /// Returns the actual volumes.
    pub(crate) const fn actual(&self) -> &ActualState {
        &self.actual
    }

    /// Returns the operations under way.
    pub(crate) const fn under_way(&self) -> &BTreeMap<VolumeId, Busy> {
        &self.under_way
    }

    /// Takes a volume's turn for a call that is no step of it, until [`Self::release`]. Whether it was free.
    pub(super) fn reserve(&mut self, id: &VolumeId, call: &'static str) -> bool {
        let is_free = !self.under_way.contains_key(id);
        if is_free {
            self.under_way.insert(id.clone(), Busy::Claim(call));
        }
        is_free
    }

    /// Notes the end of the operation on a volume.
    pub(super) fn release(&mut self, id: &VolumeId) {
        self.under_way.remove(id);
    }

    /// Returns the errors of the last operations that failed.
    pub(crate) const fn failed(&self) -> &BTreeMap<(VolumeId, VolumeStep), String> {
        &self.failed
    }

    /// Sets the pods that may have a volume besides.
    pub(crate) fn suspect(&mut self, suspected: VolumeHolders) {
        self.suspected = suspected;
    }

    /// Takes in what was found on the disk: each may be there (KEP-3756). What is known already counts.
    pub(crate) fn found(&mut self, found: &ReconstructedState) {
        for id in &found.staged {
            let volume = self.actual.entry(id, Lifecycle::Persistent);
            volume.staged = volume.staged.or(Some(Certainty::Uncertain));
        }
        for (publication, lifecycle) in &found.published {
            self.may_be_there(publication, *lifecycle);
        }
    }

    /// The same with one that may be published.
    pub(crate) fn may_be_there(&mut self, publication: &Publication, lifecycle: Lifecycle) {
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

    /// Returns what is known of a directory without a readable record.
    pub(crate) fn has(&self, broken: &UnreadableVolume) -> Option<Certainty> {
        let layout = &self.context.layout;
        self.actual.volumes.iter().find_map(|(id, volume)| {
            let staged = volume.staged.filter(|_| layout.staged(id) == broken.path);
            let mut mounts = volume.mounts.iter();
            let is_it = |(pod, it): &(&String, &ActualMount)| {
                layout.volume(pod, &it.directory) == broken.path
            };
            staged.or_else(|| mounts.find(is_it).map(|(_, it)| it.certainty))
        })
    }

    /// Whether a directory that can't be told what it is will be a volume's again.
    pub(crate) fn wants(&self, broken: &UnreadableVolume) -> bool {
        let layout = &self.context.layout;
        let mut volumes = self.desired.volumes.iter();
        volumes.any(|(id, volume)| {
            let mut mounts = volume.mounts.iter();
            layout.staged(id) == broken.path
                || mounts.any(|(pod, it)| layout.volume(pod, &it.volume.directory) == broken.path)
        })
    }

    /// Sets the volumes that pods want.
    pub(crate) fn want(&mut self, objects: &Objects, pods: &[Arc<Pod>], now: Instant) {
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
                let told = self.told.entry((pod.uid.clone(), volume.clone()));
                let told = told.or_insert_with(|| ReportedProblem::new(problem, now));
                if told.problem != *problem {
                    *told = ReportedProblem::new(problem, now);
                }
                if told.is_due(now) {
                    let message =
                        format!("MountVolume.SetUp failed for volume {volume:?} : {problem}");
                    let events = &self.context.events;
                    events.warning(pod.as_ref(), "FailedMount", message);
                }
            }
        }
        let problems = &self.desired.problems;
        self.told.retain(|(uid, volume), _| {
            let of_it = problems.get(uid);
            of_it.is_some_and(|problems| problems.contains_key(volume))
        });
    }

    /// Begins what can be done now; when to look again at what failed.
    pub(crate) fn step(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        allowed: AllowedSteps<'_>,
        now: Instant,
    ) -> Option<Duration> {
        let plan = plan(&self.desired, &self.actual, allowed);
        let mut kept = BTreeSet::new();
        let mut pause: Option<Duration> = None;
        for (id, steps) in plan {
            let is_free = !self.under_way.contains_key(&id);
            let mut first = None;
            for step in steps {
                let key = (id.clone(), step);
                match self.backoff.remaining(&key, now) {
                    Some(remaining) => {
                        pause = Some(pause.map_or(remaining, |it| it.min(remaining)));
                    }
                    None if first.is_none() => first = Some(key.1.clone()),
                    None => {}
                }
                kept.insert(key);
            }
            if let Some(step) = first.filter(|_| is_free) {
                self.begin(objects, pods, (id, step), allowed.started);
            }
        }
        self.backoff.retain(|key| kept.contains(key));
        let under_way = &self.under_way;
        self.failed
            .retain(|key, _| kept.contains(key) || is_at(under_way.get(&key.0), &key.1));
        pause
    }

    /// Tries at once what failed for drivers that weren't there, or were others.
    pub(crate) fn drivers_changed(&mut self, changed: &BTreeSet<String>) {
        self.backoff.retain(|(id, _)| !changed.contains(&id.driver));
    }
}

fn is_at(busy: Option<&Busy>, step: &VolumeStep) -> bool {
    matches!(busy, Some(Busy::Step(it)) if it == step)
}
