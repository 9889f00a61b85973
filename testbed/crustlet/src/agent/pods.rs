//! The pods, and the next step of each.

mod pod;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::Done;
use super::step::{PodDone, StartedStep, begin};
use super::volumes::Volumes;
use crate::api::Container;
use crate::cri::{Cri, CriError};
use crate::objects::{Name, Objects, Pod};
use crate::operations::{Context, MountingRuntime};
use crate::pods::config::{self, NodeFacts};
use crate::pods::decide::{Next, PodGoal, next};
use crate::pods::observed::{Container as Observable, Observed};
use crate::pods::status::{StatusInputs, status};
use crate::pods::{End, PodStep, Subject};
use crate::settings::Settings;
use crate::sources::LoadedManifests;
use crate::volumes::actual::Mounter;
use crate::volumes::spec::MountSpec;
use crate::worker::Worker;

use pod::PodProgress;

pub(crate) use pod::KnownPod;
pub(crate) use sweep::Swept;

/// All pods of the node.
#[derive(Debug)]
pub(crate) struct Pods {
    context: Context,
    cri: Cri,
    worker: Worker,
    node: Arc<NodeFacts>,
    done: mpsc::UnboundedSender<Done>,
    /// The pods by their UIDs.
    all: BTreeMap<String, KnownPod>,
    /// Those of them that are written down, or were.
    written: BTreeMap<String, Arc<Pod>>,
    /// Those whose uids others have, which were told so.
    waiting: BTreeSet<Name>,
    /// Whether the container runtime has said once what runs.
    is_listed: bool,
    /// Whether it couldn't be asked the last time.
    is_blind: bool,
}

/// Ages of pods when the container runtime was asked.
pub(crate) type Ages = BTreeMap<String, u64>;

impl Pods {
    /// None are known yet.
    pub(crate) fn new(
        settings: &Settings,
        context: &Context,
        cri: Cri,
        done: mpsc::UnboundedSender<Done>,
    ) -> Self {
        let node = Arc::new(NodeFacts::of(settings, cri.owner()));
        Self {
            worker: Worker::new(cri.clone(), context.events.clone(), Arc::clone(&node)),
            node,
            context: context.clone(),
            cri,
            done,
            all: BTreeMap::new(),
            written: BTreeMap::new(),
            waiting: BTreeSet::new(),
            is_listed: false,
            is_blind: false,
        }
    }

    /// Those that are written down, or were, by their uids.
    pub(crate) const fn written(&self) -> &BTreeMap<String, Arc<Pod>> {
        &self.written
    }

    /// All, by their uids.
    pub(crate) const fn known(&self) -> &BTreeMap<String, KnownPod> {
        &self.all
    }

    /// Pods that have a directory, whoever made it: they end where nobody wants them. Who had begun is what it was
    /// then.
    pub(crate) fn found(&mut self, pods: BTreeMap<String, Option<Arc<Pod>>>) {
        for (uid, begun) in pods {
            let known = self.all.entry(uid).or_default();
            if known.pod.is_none() {
                let is_past = self.is_listed && known.observed.is_none();
                known.is_restored = begun.is_some() && !is_past;
                known.is_past = is_past;
                known.pod = begun;
            }
        }
    }

    /// Takes the desired pods, and their manifests.
    pub(crate) fn want(&mut self, objects: &Objects, written: &Objects) {
        for known in self.all.values_mut() {
            known.is_written = false;
        }
        self.want_each(objects, written);
        let now = SystemTime::now();
        for known in self.all.values_mut() {
            known.gone = known.gone.or(Some(now)).filter(|_| !known.is_written);
        }
        let written = self.all.iter();
        self.written = written
            .filter_map(|(uid, known)| Some((uid.clone(), Arc::clone(known.pod.as_ref()?))))
            .collect();
    }

    /// One pod a uid: directories have nothing else, so whoever has them keeps them until it has ended.
    fn want_each(&mut self, objects: &Objects, written: &Objects) {
        let mut uids: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in objects.pods.values() {
            *uids.entry(&pod.uid).or_default() += 1;
        }
        let mut waiting = BTreeSet::new();
        for pod in objects.pods.values() {
            let known = self.all.entry(pod.uid.clone()).or_default();
            let owner = known.owner();
            // Which of two it was that ran is the container runtime's to say.
            if owner.is_none() && uids[pod.uid.as_str()] > 1 && !self.is_listed {
                continue;
            }
            if !known.is_written && owner.as_ref().is_none_or(|owner| *owner == pod.name) {
                known.is_written = true;
                // As its author has it, whatever a policy says.
                let said = written.pods.get(&pod.name).map(|it| it.deferred.clone());
                known.take(pod, said.unwrap_or_default(), &self.context.events);
                continue;
            }
            if let Some(owner) = owner.filter(|_| !self.waiting.contains(&pod.name)) {
                let uid = &pod.uid;
                let message = format!(
                    "pod {owner} has its metadata.uid {uid}, and it waits for that one's end; hint: leave metadata.uid out"
                );
                let events = &self.context.events;
                events.warning(pod.as_ref(), "FailedValidation", message);
            }
            waiting.insert(pod.name.clone());
        }
        self.waiting = waiting;
    }

    /// Those whose uids others have.
    pub(crate) const fn waiting(&self) -> &BTreeSet<Name> {
        &self.waiting
    }

    /// Whether the container runtime has said once what runs.
    pub(crate) const fn are_listed(&self) -> bool {
        self.is_listed
    }

    /// Those whose volumes are to be there. Who may have ended waits until it is known.
    pub(crate) fn wanting_volumes(&self) -> Vec<Arc<Pod>> {
        let pods = self.all.values().filter(|it| it.is_to_run());
        let pods = pods.filter(|it| self.is_listed || !it.ends());
        let pods = pods.filter(|it| it.outcome().is_none());
        pods.filter_map(|it| it.pod.clone()).collect()
    }

    /// Those whose processes may be there, or are being made.
    pub(crate) fn running(&self) -> BTreeSet<String> {
        let is_running = |known: &KnownPod| {
            let observed = known.observed.as_ref();
            let is_at_it = matches!(known.at, PodProgress::Step | PodProgress::Unseen);
            is_at_it || observed.is_some_and(|it| !it.is_stopped())
        };
        let running = self.all.iter().filter(|(_, known)| is_running(known));
        running.map(|(uid, _)| uid.clone()).collect()
    }

    /// Those that the container runtime has something of, whether it runs or not.
    pub(crate) fn begun(&self) -> BTreeSet<String> {
        let begun = self.all.iter().filter(|(_, known)| known.has_begun());
        begun.map(|(uid, _)| uid.clone()).collect()
    }

    /// To be kept while the container runtime is asked.
    pub(crate) fn ages(&self) -> Ages {
        let ages = self.all.iter();
        ages.map(|(uid, known)| (uid.clone(), known.age)).collect()
    }

    /// Takes the state of the container runtime, except of pods for which a step was done since it was asked.
    pub(crate) fn observe(&mut self, mut listed: BTreeMap<String, Observed>, ages: &Ages) {
        self.is_blind = false;
        if !std::mem::replace(&mut self.is_listed, true) {
            for (uid, known) in &mut self.all {
                // Nothing is left of it but its directory: it begins anew, as it is written by then.
                if known.is_restored && !listed.contains_key(uid) {
                    known.is_restored = false;
                    known.is_past = true;
                }
            }
        }
        for (uid, known) in &mut self.all {
            let observed = listed.remove(uid);
            // Who wasn't known then was nobody's step.
            let age = ages.get(uid).copied().unwrap_or_default();
            if age == known.age && matches!(known.at, PodProgress::Rest | PodProgress::Unseen) {
                known.observed = observed;
                known.at = PodProgress::Rest;
            }
        }
        // Who was known then has ended since.
        listed.retain(|uid, _| !ages.contains_key(uid));
        for (uid, observed) in listed {
            let known = self.all.entry(uid).or_default();
            known.observed = Some(observed);
        }
    }

    /// It couldn't be asked.
    pub(crate) fn unseen(&mut self, error: &CriError) {
        if !std::mem::replace(&mut self.is_blind, true) {
            tracing::warn!("{}", crust_state::sentence(error));
        }
    }

    /// Takes the result of a step.
    pub(crate) fn take(&mut self, done: PodDone) {
        let Some(known) = self.all.get_mut(&done.uid) else {
            return;
        };
        known.at = PodProgress::Unseen;
        known.age += 1;
        match done.result {
            Ok(()) => known.failures.succeed(&done.subject),
            Err(failure) => known.failures.fail(done.subject, failure, Instant::now()),
        }
        known.told.extend(done.told);
        if let Ok(observed) = done.observed {
            known.observed = observed;
            known.at = PodProgress::Rest;
        }
    }

    /// Updates the status of pods, with an event for each container that begins to wait for its next start.
    pub(crate) fn show(&mut self, runtime: &str) {
        let (now, clock) = (SystemTime::now(), Instant::now());
        for known in self.all.values_mut() {
            let Some(pod) = &known.pod else {
                continue;
            };
            let shown = status(&StatusInputs {
                pod,
                observed: known.observed.as_ref(),
                failures: &known.failures,
                held: &known.failures.held(clock),
                is_ending: !known.is_to_run(),
                runtime,
                before: known.status.as_ref(),
                now,
            });
            self.worker
                .tell_back_offs(pod, known.status.as_ref(), &shown);
            known.status = Some(shown);
        }
    }

    /// Begins what can be begun. The manifest that was taken away, if one was: what is written has to be read anew
    /// then. When to look again though nothing happens.
    pub(crate) fn step(
        &mut self,
        loaded: &LoadedManifests,
        objects: &Arc<Objects>,
        volumes: &Volumes,
        is_known: bool,
    ) -> (Option<PathBuf>, Option<Duration>) {
        if !self.is_listed {
            return (None, None);
        }
        let (now, clock) = (SystemTime::now(), Instant::now());
        let mut pause: Option<Duration> = None;
        let mut ended = Vec::new();
        for (uid, known) in &mut self.all {
            if known.at != PodProgress::Rest {
                if let Some(end) = known.hasten() {
                    let (worker, pod) = (self.worker.clone(), known.regarding(uid));
                    // What came of it is told by the step that is under way.
                    tokio::spawn(async move { worker.end(&pod, &end).await.ok() });
                }
                continue;
            }
            let held = known.failures.held(clock);
            let mut wait = held.0.values().min().copied();
            let is_to_run = known.is_to_run();
            let next = match &known.pod {
                Some(pod) if is_to_run => {
                    let late = volumes.has_late(uid);
                    let wanted = PodGoal::Run {
                        pod,
                        volumes_ready: volumes.are_ready(pod),
                        told: late.then_some(&known.told),
                    };
                    next(wanted, known.observed.as_ref(), &held, now)
                }
                // Who isn't wanted may be written down where nobody has looked yet.
                _ if !known.is_written && !is_known => continue,
                _ => {
                    let grace = known.grace();
                    next(PodGoal::End { grace }, known.observed.as_ref(), &held, now)
                }
            };
            let are_gone = volumes.are_gone(uid);
            match next {
                // What tells that it was there goes when its volumes have.
                Next::Step(PodStep::End(End::RemovePod { .. })) if !are_gone => {}
                Next::Step(step) => {
                    known.is_ending |= !is_to_run;
                    known.begin(&step);
                    let begun = StartedStep {
                        objects: Arc::clone(objects),
                        regarding: known.regarding(uid),
                        pod: known.pod.clone(),
                        node: Arc::clone(&self.node),
                        step,
                        late: volumes.late(uid),
                        mounted: volumes.mounted(uid),
                    };
                    let worker = self.worker.clone();
                    let (context, cri) = (self.context.clone(), self.cri.clone());
                    begin(context, cri, worker, begun, self.done.clone());
                }
                Next::Wait(other) => wait = Some(wait.map_or(other, |it| it.min(other))),
                Next::Idle => {
                    let is_over = known.observed.is_none() && are_gone && !is_to_run;
                    if is_over && !held.0.contains_key(&Subject::End) {
                        ended.push(uid.clone());
                    }
                }
            }
            pause = [pause, wait].into_iter().flatten().min();
        }
        for uid in ended {
            self.sweep(&uid);
        }
        let mut over = Vec::new();
        for (uid, known) in self.all.iter().filter(|(_, it)| it.at == PodProgress::Over) {
            match known.failures.held(clock).0.get(&Subject::End) {
                Some(wait) => pause = Some(pause.map_or(*wait, |it| it.min(*wait))),
                None => over.push(uid.clone()),
            }
        }
        // One at a time: what is written is another after each.
        let gone = over.iter().find_map(|uid| self.finish(loaded, uid));
        let gone = gone.or_else(|| self.drop_waiting(loaded));
        (gone, pause)
    }

    /// The runtime handler that has a pod's volume mounted, where it was told to (KEP-2857's earlier draft).
    pub(crate) fn telling(
        &self,
        uid: &str,
        spec: &MountSpec,
        mounter: Mounter,
    ) -> Option<MountingRuntime> {
        let socket = spec
            .runtime
            .as_ref()
            .filter(|_| mounter == Mounter::Runtime)?;
        let observed = self.all.get(uid)?.observed.as_ref()?;
        let sandbox = observed.sandboxes.iter().find(|it| it.is_ready)?;
        Some(MountingRuntime::new(socket, &sandbox.id))
    }

    /// A container of a pod's, for whoever wants to look into it: by its name, or the first.
    pub(crate) fn container(&self, pod: &Name, container: &str) -> Result<Container, String> {
        let found = self
            .all
            .iter()
            .find(|(_, it)| it.name().as_ref() == Some(pod));
        let (uid, known) = found.ok_or_else(|| format!("Pod {pod} not found"))?;
        let first = known.pod.as_ref().and_then(|it| it.spec.containers.first());
        let name = match (container, first) {
            ("", Some(first)) => first.name.as_str(),
            (name, _) => name,
        };
        let is_there = |pod: &Arc<Pod>| pod.containers().any(|it| it.name == name);
        if known.pod.as_ref().is_some_and(|pod| !is_there(pod)) {
            return Err(format!("Pod {pod} has no container {name:?}"));
        }
        let observed = known.observed.as_ref();
        let latest = observed.and_then(|it| it.latest(name));
        let latest = latest.ok_or_else(|| {
            format!(
                "Pod {pod}: container {name:?} wasn't started yet; hint: crustlet events pod/{}",
                pod.name
            )
        })?;
        let logs = self.node.logs_of(pod, uid);
        let log = |it: &Observable| logs.join(config::log_path(&it.name, it.attempt));
        Ok(Container {
            id: latest.id.clone(),
            is_running: latest.is_alive(),
            log: log(latest),
            previous_log: observed.and_then(|it| it.before(latest)).map(log),
        })
    }
}
