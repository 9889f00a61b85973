//! All pods of the node. Decides the next step of each pod, and starts it.

mod cleanup;
mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::Completion;
use super::step::{PodStepResult, StartedStep, spawn};
use super::volumes::Volumes;
use crate::api::ContainerInstance;
use crate::cri::{Cri, CriError};
use crate::objects::{Name, Objects, Pod};
use crate::operations::{Context, MountingRuntime};
use crate::pods::config::{self, NodeInfo};
use crate::pods::decide::{NextAction, PodGoal, next};
use crate::pods::observed::{ObservedContainer, ObservedPod};
use crate::pods::status::{StatusInputs, status};
use crate::pods::{EndStep, PodStep, StepSubject};
use crate::settings::Settings;
use crate::sources::LoadedManifests;
use crate::volumes::actual::Mounter;
use crate::volumes::spec::MountSpec;
use crate::worker::PodWorker;

use pod::PodProgress;

pub(crate) use cleanup::CleanupResult;
pub(crate) use pod::KnownPod;

/// All pods of the node.
#[derive(Debug)]
pub(crate) struct Pods {
    context: Context,
    cri: Cri,
    worker: PodWorker,
    node: Arc<NodeInfo>,
    completions: mpsc::UnboundedSender<Completion>,
    /// The pods by their UIDs.
    all: BTreeMap<String, KnownPod>,
    /// The pods' manifests by their UIDs. A pod whose manifest was removed has its last one here.
    specs: BTreeMap<String, Arc<Pod>>,
    /// The pods that wait because another pod has the same UID. An event was emitted for each.
    waiting_for_uid: BTreeSet<Name>,
    /// Whether a relist has succeeded since the agent was started.
    have_relisted: bool,
    is_relist_failing: bool,
}

/// The generations of the pods before a relist, by their UIDs ([`KnownPod::generation`]).
pub(crate) type Generations = BTreeMap<String, u64>;

impl Pods {
    pub(crate) fn new(
        settings: &Settings,
        context: &Context,
        cri: Cri,
        completions: mpsc::UnboundedSender<Completion>,
    ) -> Self {
        let node = Arc::new(NodeInfo::new(settings, cri.owner()));
        Self {
            worker: PodWorker::new(cri.clone(), context.events.clone(), Arc::clone(&node)),
            node,
            context: context.clone(),
            cri,
            completions,
            all: BTreeMap::new(),
            specs: BTreeMap::new(),
            waiting_for_uid: BTreeSet::new(),
            have_relisted: false,
            is_relist_failing: false,
        }
    }

    /// Returns the pods' manifests by their UIDs. A pod whose manifest was removed has its last one here.
    pub(crate) const fn specs(&self) -> &BTreeMap<String, Arc<Pod>> {
        &self.specs
    }

    /// Returns what is known of each pod, by its UID.
    pub(crate) const fn known(&self) -> &BTreeMap<String, KnownPod> {
        &self.all
    }

    /// Adds the pods that have a directory, with their manifests from when they started. `None` means that the manifest
    /// can't be read. A pod that has no manifest in the manifests' directories is ended.
    pub(crate) fn add_from_disk(&mut self, pods: BTreeMap<String, Option<Arc<Pod>>>) {
        for (uid, manifest) in pods {
            let known = self.all.entry(uid).or_default();
            if known.pod.is_none() {
                let is_stale = self.have_relisted && known.observed.is_none();
                known.is_restored = manifest.is_some() && !is_stale;
                known.is_stale = is_stale;
                known.pod = manifest;
            }
        }
    }

    /// Sets the desired pods. `objects` has their manifests after the admission policy, and `manifests` before it.
    pub(crate) fn set_desired(&mut self, objects: &Objects, manifests: &Objects) {
        for known in self.all.values_mut() {
            known.has_manifest = false;
        }
        self.assign_manifests(objects, manifests);
        let now = SystemTime::now();
        for known in self.all.values_mut() {
            let since = known.without_manifest_since.or(Some(now));
            known.without_manifest_since = since.filter(|_| !known.has_manifest);
        }
        let known = self.all.iter();
        self.specs = known
            .filter_map(|(uid, known)| Some((uid.clone(), Arc::clone(known.pod.as_ref()?))))
            .collect();
    }

    /// Gives each manifest to the pod with its UID. Directories are named after the UID alone, so a second pod with the
    /// same UID waits until the first has ended.
    fn assign_manifests(&mut self, objects: &Objects, manifests: &Objects) {
        let mut uids: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in objects.pods.values() {
            *uids.entry(&pod.uid).or_default() += 1;
        }
        let mut waiting = BTreeSet::new();
        for pod in objects.pods.values() {
            let known = self.all.entry(pod.uid.clone()).or_default();
            let owner = known.owner();
            // Only the container runtime knows which of two pods with one UID is running.
            if owner.is_none() && uids[pod.uid.as_str()] > 1 && !self.have_relisted {
                continue;
            }
            if !known.has_manifest && owner.as_ref().is_none_or(|owner| *owner == pod.name) {
                known.has_manifest = true;
                let manifest = manifests.pods.get(&pod.name);
                let deferred = manifest.map(|manifest| manifest.deferred.clone());
                known.set_manifest(pod, deferred.unwrap_or_default(), &self.context.events);
                continue;
            }
            if let Some(owner) = owner.filter(|_| !self.waiting_for_uid.contains(&pod.name)) {
                let uid = &pod.uid;
                let message = format!(
                    "metadata.uid {uid} is in use by pod {owner}; this pod starts when {owner} has ended; hint: remove metadata.uid from this pod's manifest"
                );
                let events = &self.context.events;
                events.warning(pod.as_ref(), "FailedValidation", message);
            }
            waiting.insert(pod.name.clone());
        }
        self.waiting_for_uid = waiting;
    }

    /// Returns the pods that wait because another pod has the same UID.
    pub(crate) const fn waiting_for_uid(&self) -> &BTreeSet<Name> {
        &self.waiting_for_uid
    }

    /// Returns whether a relist has succeeded since the agent was started.
    pub(crate) const fn have_relisted(&self) -> bool {
        self.have_relisted
    }

    /// Returns the pods whose volumes are to be mounted. Before the first relist, pods that may have ended are left
    /// out.
    pub(crate) fn needing_volumes(&self) -> Vec<Arc<Pod>> {
        let known = self.all.values().filter(|known| known.should_run());
        let known = known.filter(|known| self.have_relisted || !known.may_complete());
        let known = known.filter(|known| known.outcome().is_none());
        known.filter_map(|known| known.pod.clone()).collect()
    }

    /// Returns the pods whose processes may exist or are being started.
    pub(crate) fn running(&self) -> BTreeSet<String> {
        let is_running = |known: &KnownPod| {
            let observed = known.observed.as_ref();
            let is_changing = matches!(
                known.progress,
                PodProgress::StepRunning | PodProgress::Unknown
            );
            is_changing || observed.is_some_and(|observed| !observed.is_stopped())
        };
        let running = self.all.iter().filter(|(_, known)| is_running(known));
        running.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns the pods that may have sandboxes or containers, running or not.
    pub(crate) fn started(&self) -> BTreeSet<String> {
        let started = self.all.iter().filter(|(_, known)| known.has_started());
        started.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns the generations of the pods, to be passed to [`Self::apply_relist`] with the result of a relist that
    /// begins now.
    pub(crate) fn generations(&self) -> Generations {
        let generations = self.all.iter();
        generations
            .map(|(uid, known)| (uid.clone(), known.generation))
            .collect()
    }

    /// Applies the result of a relist, except to pods for which a step was started or has ended since the relist began.
    pub(crate) fn apply_relist(
        &mut self,
        mut listed: BTreeMap<String, ObservedPod>,
        generations: &Generations,
    ) {
        self.is_relist_failing = false;
        if !std::mem::replace(&mut self.have_relisted, true) {
            for (uid, known) in &mut self.all {
                // Only the directory is left: the pod starts over with the current manifest.
                if known.is_restored && !listed.contains_key(uid) {
                    known.is_restored = false;
                    known.is_stale = true;
                }
            }
        }
        for (uid, known) in &mut self.all {
            let observed = listed.remove(uid);
            // A pod that wasn't known when the relist began had generation 0 then.
            let generation = generations.get(uid).copied().unwrap_or_default();
            let is_settled = matches!(known.progress, PodProgress::Idle | PodProgress::Unknown);
            if generation == known.generation && is_settled {
                known.observed = observed;
                known.progress = PodProgress::Idle;
            }
        }
        // A pod that was known when the relist began, and isn't known now, has ended in the meantime.
        listed.retain(|uid, _| !generations.contains_key(uid));
        for (uid, observed) in listed {
            let known = self.all.entry(uid).or_default();
            known.observed = Some(observed);
        }
    }

    /// Logs the failure of a relist, unless the previous relist failed too.
    pub(crate) fn relist_failed(&mut self, error: &CriError) {
        if !std::mem::replace(&mut self.is_relist_failing, true) {
            tracing::warn!("{}", crust_state::error_message(error));
        }
    }

    pub(crate) fn handle_result(&mut self, result: PodStepResult) {
        let Some(known) = self.all.get_mut(&result.uid) else {
            return;
        };
        known.progress = PodProgress::Unknown;
        known.generation += 1;
        match result.result {
            Ok(()) => known.failures.succeed(&result.subject),
            Err(failure) => known.failures.fail(result.subject, failure, Instant::now()),
        }
        known.published_sandboxes.extend(result.published_to);
        if let Ok(observed) = result.observed {
            known.observed = observed;
            known.progress = PodProgress::Idle;
        }
    }

    /// Updates the status of all pods, and emits an event for each container that has begun to back off. `runtime` is
    /// the container runtime's name.
    pub(crate) fn update_status(&mut self, runtime: &str) {
        let (now, clock) = (SystemTime::now(), Instant::now());
        for known in self.all.values_mut() {
            let Some(pod) = &known.pod else {
                continue;
            };
            let status = status(&StatusInputs {
                pod,
                observed: known.observed.as_ref(),
                failures: &known.failures,
                retry_delays: &known.failures.retry_delays(clock),
                is_ending: !known.should_run(),
                runtime,
                previous: known.status.as_ref(),
                now,
            });
            self.worker
                .emit_back_offs(pod, known.status.as_ref(), &status);
            known.status = Some(status);
        }
    }

    /// Starts all steps that can be started now.
    ///
    /// Returns the manifest that was removed, if any, and how long to wait before the next attempt. After a removal the
    /// manifests have to be read again.
    pub(crate) fn reconcile(
        &mut self,
        loaded: &LoadedManifests,
        objects: &Arc<Objects>,
        volumes: &Volumes,
        is_complete: bool,
    ) -> (Option<PathBuf>, Option<Duration>) {
        if !self.have_relisted {
            return (None, None);
        }
        let (now, clock) = (SystemTime::now(), Instant::now());
        let mut pause: Option<Duration> = None;
        let mut finished = Vec::new();
        for (uid, known) in &mut self.all {
            if known.progress != PodProgress::Idle {
                if let Some(stop) = known.shortened_stop() {
                    let (worker, pod) = (self.worker.clone(), known.regarding(uid));
                    // The step that is in progress reports the result.
                    tokio::spawn(async move { worker.end(&pod, &stop).await.ok() });
                }
                continue;
            }
            let retry_delays = known.failures.retry_delays(clock);
            let mut wait = retry_delays.0.values().min().copied();
            let should_run = known.should_run();
            let next = match &known.pod {
                Some(pod) if should_run => {
                    let has_runtime_mounts = volumes.has_runtime_mounts(uid);
                    let goal = PodGoal::Run {
                        pod,
                        volumes_ready: volumes.are_ready(pod),
                        published_sandboxes: has_runtime_mounts
                            .then_some(&known.published_sandboxes),
                    };
                    next(goal, known.observed.as_ref(), &retry_delays, now)
                }
                // The pod's manifest may be among those that haven't been read yet.
                _ if !known.has_manifest && !is_complete => continue,
                _ => {
                    let grace = known.grace();
                    next(
                        PodGoal::End { grace },
                        known.observed.as_ref(),
                        &retry_delays,
                        now,
                    )
                }
            };
            let has_no_mounts = volumes.has_no_mounts(uid);
            match next {
                // The pod stays known to the container runtime until its volumes are unmounted.
                NextAction::Step(PodStep::End(EndStep::RemovePod { .. })) if !has_no_mounts => {}
                NextAction::Step(step) => {
                    known.is_ending |= !should_run;
                    known.begin(&step);
                    let started = StartedStep {
                        objects: Arc::clone(objects),
                        regarding: known.regarding(uid),
                        pod: known.pod.clone(),
                        node: Arc::clone(&self.node),
                        step,
                        runtime_mounts: volumes.runtime_mounts(uid),
                        mounted: volumes.mounted(uid),
                    };
                    let worker = self.worker.clone();
                    let (context, cri) = (self.context.clone(), self.cri.clone());
                    spawn(context, cri, worker, started, self.completions.clone());
                }
                NextAction::Wait(delay) => wait = [wait, Some(delay)].into_iter().flatten().min(),
                NextAction::Idle => {
                    let is_finished = known.observed.is_none() && has_no_mounts && !should_run;
                    if is_finished && !retry_delays.0.contains_key(&StepSubject::End) {
                        finished.push(uid.clone());
                    }
                }
            }
            pause = [pause, wait].into_iter().flatten().min();
        }
        for uid in finished {
            self.start_cleanup(&uid);
        }
        let mut cleaned_up = Vec::new();
        for (uid, known) in self
            .all
            .iter()
            .filter(|(_, known)| known.progress == PodProgress::CleanedUp)
        {
            match known.failures.retry_delays(clock).0.get(&StepSubject::End) {
                Some(wait) => pause = [pause, Some(*wait)].into_iter().flatten().min(),
                None => cleaned_up.push(uid.clone()),
            }
        }
        // One manifest is removed at a time, because the manifests have to be read again after each removal.
        let removed = cleaned_up
            .iter()
            .find_map(|uid| self.remove_manifest(loaded, uid));
        let removed = removed.or_else(|| self.remove_waiting_manifest(loaded));
        (removed, pause)
    }

    /// Returns the runtime handler that mounts a pod's volume (KEP-2857's earlier draft). `None` if another program
    /// mounts the volume, or the pod has no ready sandbox.
    pub(crate) fn mounting_runtime(
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
        let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.is_ready)?;
        Some(MountingRuntime::new(socket, &sandbox.id))
    }

    /// Finds the latest instance of a pod's container. An empty name selects the pod's first container.
    pub(crate) fn container(
        &self,
        pod: &Name,
        container: &str,
    ) -> Result<ContainerInstance, String> {
        let found = self
            .all
            .iter()
            .find(|(_, known)| known.name().as_ref() == Some(pod));
        let (uid, known) = found.ok_or_else(|| format!("Pod {pod} not found"))?;
        let first = known
            .pod
            .as_ref()
            .and_then(|pod| pod.spec.containers.first());
        let name = match (container, first) {
            ("", Some(first)) => first.name.as_str(),
            (name, _) => name,
        };
        let has_container =
            |pod: &Arc<Pod>| pod.containers().any(|container| container.name == name);
        if known.pod.as_ref().is_some_and(|pod| !has_container(pod)) {
            return Err(format!("Pod {pod} has no container {name:?}"));
        }
        let observed = known.observed.as_ref();
        let latest = observed.and_then(|observed| observed.latest(name));
        let latest = latest.ok_or_else(|| {
            format!(
                "Pod {pod}: container {name:?} has not been started yet; hint: see its events: crustlet events pod/{}",
                pod.name
            )
        })?;
        let logs = self.node.pod_logs_dir(pod, uid);
        let log = |container: &ObservedContainer| {
            logs.join(config::log_path(&container.name, container.attempt))
        };
        Ok(ContainerInstance {
            id: latest.id.clone(),
            is_running: latest.is_alive(),
            log: log(latest),
            previous_log: observed
                .and_then(|observed| observed.previous(latest))
                .map(log),
        })
    }
}
