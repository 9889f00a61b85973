//! The task that owns the desired and the actual state and starts the steps that reconcile them.
//!
//! The task waits only for the next event: a changed manifest, a driver that registers or disconnects, a relist of the
//! container runtime, the end of an operation, or a query. Everything that blocks runs in a task of its own, at most
//! one per volume and one per pod, and sends its result back as a [`Completion`].

mod claims;
mod deferral;
mod driver_warnings;
mod listing;
mod pods;
mod reconstruction;
mod stats;
mod step;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::admission::{DeferPolicy, admit_all};
use crate::api::AgentQuery;
use crate::cri::{Cri, CriError};
use crate::metrics::VolumeStats;
use crate::objects::{Objects, Pod};
use crate::operations::Context;
use crate::plugins::DriverChanges;
use crate::pods::observed::ObservedPod;
use crate::settings::{FeatureGates, Settings};
use crate::sources::{self, LoadedManifests, ManifestDirectories, SourceError};
use crate::volumes::plan::AllowedSteps;
use crate::watch::DirWatch;

use claims::{ClaimTaskResult, Claims};
use driver_warnings::DriverWarnings;
use listing::{ListingInputs, documents};
use pods::{CleanupResult, Generations, Pods};
use reconstruction::Reconstruction;
use stats::Measurements;
use step::PodStepResult;
use volumes::{VolumeStepResult, Volumes};

/// The interval between two relists of the container runtime. kubelet has the same interval.
const RELIST_PERIOD: Duration = Duration::from_secs(1);

/// The interval at which manifests are read if inotify isn't available.
const MANIFEST_POLL_PERIOD: Duration = Duration::from_secs(5);

/// The result of a task that the agent started.
#[derive(Debug)]
pub(crate) enum Completion {
    Volume(VolumeStepResult),
    Pod(PodStepResult),
    /// The removal of a pod's logs and directory.
    PodCleanup(CleanupResult),
    /// The pods in the container runtime, with the generations from before the relist.
    Relist(Generations, Result<BTreeMap<String, ObservedPod>, CriError>),
    /// The name of the container runtime.
    RuntimeName(String),
    Claim(ClaimTaskResult),
    /// The measured volumes of a driver.
    VolumeStats(String, Vec<VolumeStats>),
}

/// The state of the agent's task.
#[derive(Debug)]
pub(crate) struct Agent {
    context: Context,
    gates: FeatureGates,
    cri: Cri,
    /// The container runtime's name, which is part of the containers' IDs. Empty until it is known.
    runtime: String,
    directories: Vec<PathBuf>,
    sources: ManifestDirectories,
    /// The manifests as they were last read.
    loaded: LoadedManifests,
    /// The manifests merged with the records of claims and the policy's decisions.
    objects: Arc<Objects>,
    policy: DeferPolicy,
    claims: Claims,
    /// When to read the manifests again even if no change is reported.
    reload_at: Option<Instant>,
    /// The errors of manifests that were logged, so that each is logged once.
    logged_errors: Vec<SourceError>,
    driver_warnings: DriverWarnings,
    pods: Pods,
    volumes: Volumes,
    reconstruction: Reconstruction,
    is_relisting: bool,
    measurements: Measurements,
    stats_period: Duration,
    queries: mpsc::UnboundedReceiver<AgentQuery>,
    completions: (
        mpsc::UnboundedSender<Completion>,
        mpsc::UnboundedReceiver<Completion>,
    ),
}

impl Agent {
    /// Creates the agent. With the gate `NewVolumeManagerReconstruction` it reconstructs the volumes from the disk
    /// first, before the desired state is known (KEP-3756).
    pub(crate) fn new(
        settings: &Settings,
        context: Context,
        cri: Cri,
        queries: mpsc::UnboundedReceiver<AgentQuery>,
    ) -> Result<Self> {
        let completions = mpsc::unbounded_channel();
        let mut volumes = Volumes::new(context.clone(), completions.0.clone());
        let mut reconstruction =
            Reconstruction::new(settings.feature_gates, &context, &mut volumes)?;
        let mut pods = Pods::new(settings, &context, cri.clone(), completions.0.clone());
        pods.add_from_disk(reconstruction.take_pods());
        let directories = settings.manifests();
        for directory in &directories {
            if let Err(error) = sources::remove_temporary_files(directory) {
                tracing::warn!("manifests: {}", crust_state::error_message(&error));
            }
        }
        let policy = settings.admission_policy.as_deref().map(DeferPolicy::load);
        Ok(Self {
            gates: settings.feature_gates,
            sources: ManifestDirectories::new(&directories),
            pods,
            directories,
            loaded: LoadedManifests::default(),
            objects: Arc::default(),
            policy: policy.transpose()?.unwrap_or_default(),
            claims: Claims::open(&context, completions.0.clone())?,
            reload_at: None,
            logged_errors: Vec::new(),
            driver_warnings: DriverWarnings::default(),
            volumes,
            reconstruction,
            is_relisting: false,
            measurements: Measurements::default(),
            stats_period: settings.volume_stats_agg_period,
            context,
            cri,
            runtime: String::new(),
            queries,
            completions,
        })
    }

    /// Runs the agent's loop. It ends only when the future is dropped.
    pub(crate) async fn run(mut self) {
        // The first query gets the manifests rather than an empty list.
        self.load_manifests(&[]);
        let mut manifests = watch_manifests(&self.directories);
        let mut drivers = self.context.drivers.subscribe();
        let mut previous_drivers = DriverChanges::default();
        let mut relist = ticker(RELIST_PERIOD);
        let mut measure = ticker(self.stats_period);
        // An interval ticks at once, but no volume can be measured yet.
        measure.reset();
        loop {
            let pause = self.reconcile();
            let retry = async {
                match pause {
                    Some(pause) => sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(completion) = self.completions.1.recv() => self.handle_completion(completion),
                Some(query) = self.queries.recv() => self.handle_query(query),
                Ok(()) = manifests.changed() => self.load_manifests(&[]),
                Ok(()) = drivers.changed() => {
                    let current = drivers.borrow_and_update().clone();
                    let changed = current.since(&previous_drivers);
                    previous_drivers = current;
                    self.volumes.drivers_changed(&changed);
                    self.claims.drivers_changed(changed);
                }
                _ = relist.tick() => self.relist(),
                _ = measure.tick() => self.measure(),
                () = retry => {}
            }
        }
    }

    /// Reads the manifests. `removed` are files that the agent itself removed: their objects are gone at once, without
    /// the delay for files that editors replace.
    fn load_manifests(&mut self, removed: &[PathBuf]) {
        let now = Instant::now();
        self.loaded = self.sources.read(removed, now);
        self.reload_at = self.loaded.retry_after.map(|pause| now + pause);
        self.merge_objects();
        for error in &self.loaded.errors {
            if !self.logged_errors.contains(error) {
                tracing::warn!("manifests: {error}");
            }
        }
        self.logged_errors.clone_from(&self.loaded.errors);
        self.driver_warnings
            .emit(&self.objects, &self.context.events);
    }

    /// Merges the manifests with the records of claims, and decides which volumes are deferred.
    fn merge_objects(&mut self) {
        let mut objects = self.claims.records().apply_to(&self.loaded.objects);
        if self.gates.runtime_assisted_mount {
            admit_all(&self.policy, &mut objects);
        } else {
            objects.ignore_deferral();
        }
        self.objects = Arc::new(objects);
    }

    fn relist(&mut self) {
        if std::mem::replace(&mut self.is_relisting, true) {
            return;
        }
        let (cri, completions, generations) = (
            self.cri.clone(),
            self.completions.0.clone(),
            self.pods.generations(),
        );
        let is_name_known = !self.runtime.is_empty();
        tokio::spawn(async move {
            if !is_name_known && let Ok(version) = cri.version().await {
                let _ = completions.send(Completion::RuntimeName(version.runtime_name));
            }
            let _ = completions.send(Completion::Relist(generations, cri.pods().await));
        });
    }

    fn handle_completion(&mut self, completion: Completion) {
        match completion {
            Completion::Volume(result) => self.volumes.handle_result(result, self.pods.specs()),
            Completion::PodCleanup(result) => self.pods.finish_cleanup(&result),
            Completion::Pod(result) => {
                self.pods.handle_result(result);
                self.pods.update_status(&self.runtime);
            }
            Completion::Relist(generations, listed) => {
                self.is_relisting = false;
                match listed {
                    Ok(observed) => {
                        self.pods.apply_relist(observed, &generations);
                        self.pods.update_status(&self.runtime);
                    }
                    Err(error) => self.pods.relist_failed(&error),
                }
            }
            Completion::Claim(result) => {
                if self.claims.handle_result(result, &mut self.volumes) {
                    self.merge_objects();
                }
            }
            Completion::RuntimeName(runtime) => self.runtime = runtime,
            Completion::VolumeStats(driver, stats) => {
                self.measurements.record(driver, stats, &self.context);
            }
        }
    }

    fn measure(&mut self) {
        self.measurements.begin(
            &self.context,
            &self.pods,
            &self.volumes,
            &self.completions.0,
        );
    }

    fn handle_query(&mut self, query: AgentQuery) {
        // A failed send means that the caller has hung up.
        match query {
            AgentQuery::Reload(removed, answer) => {
                self.load_manifests(removed.as_slice());
                self.pods.set_desired(&self.objects, &self.loaded.objects);
                let _ = answer.send(());
            }
            AgentQuery::List(selector, answer) => {
                self.pods.update_status(&self.runtime);
                let inputs = ListingInputs {
                    loaded: &self.loaded,
                    objects: &self.objects,
                    records: self.claims.records(),
                    pods: &self.pods,
                    volumes: &self.volumes,
                    context: &self.context,
                };
                let _ = answer.send(documents(inputs, &selector));
            }
            AgentQuery::DeferredVolumes(answer) => {
                let deferred = deferral::deferred_volumes_of_started_pods(
                    &self.objects,
                    &self.pods,
                    &self.volumes,
                );
                let _ = answer.send(deferred);
            }
            AgentQuery::DeleteVolume(name, answer) => {
                let deleted = self.claims.delete_volume(&name);
                self.merge_objects();
                let _ = answer.send(deleted.map_err(|error| crust_state::error_message(&error)));
            }
            AgentQuery::Container(pod, container, answer) => {
                let _ = answer.send(self.pods.container(&pod, &container));
            }
        }
    }

    /// Starts all steps that can be started now. Returns how long to wait before the next attempt if no event comes
    /// first.
    fn reconcile(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.reload_at.is_some_and(|reload_at| reload_at <= now) {
            self.load_manifests(&[]);
        }
        let reload_at = self.reload_at;
        let reload = reload_at.map(|reload_at| reload_at.saturating_duration_since(now));
        let is_complete = self.loaded.is_complete && self.pods.have_relisted();
        let claims = self.reconcile_claims(is_complete, now);
        let objects = Arc::clone(&self.objects);
        self.pods.set_desired(&objects, &self.loaded.objects);
        let pods_needing_volumes: Vec<Arc<Pod>> = self.pods.needing_volumes();
        self.volumes
            .set_desired(&objects, &pods_needing_volumes, now);
        let running: BTreeSet<String> = self.pods.running();
        if is_complete {
            self.reconstruction
                .clean_up(&self.context, &mut self.volumes, &running);
            self.pods.add_from_disk(self.reconstruction.take_pods());
        }
        let allowed = AllowedSteps {
            may_unmount: is_complete,
            running: &running,
            started: &self.pods.started(),
        };
        let volumes = self
            .volumes
            .reconcile(&objects, self.pods.specs(), allowed, now);
        let (removed, pods) =
            self.pods
                .reconcile(&self.loaded, &objects, &self.volumes, is_complete);
        self.volumes.report_totals();
        if let Some(removed) = removed {
            // A pod that has the same name or UID in a manifest from now on is a new pod.
            self.load_manifests(&[removed]);
            return Some(Duration::ZERO);
        }
        [reload, claims, volumes, pods].into_iter().flatten().min()
    }

    /// Reconciles the claims until no record changes any more, because a changed record may allow the next step.
    fn reconcile_claims(&mut self, is_complete: bool, now: Instant) -> Option<Duration> {
        let unreadable_directories = self.reconstruction.unreadable_directories();
        for _ in 0..Claims::MAX_ROUNDS {
            let inputs = claims::ClaimInputs {
                loaded: &self.loaded,
                objects: &self.objects,
                pods: &self.pods,
                unreadable_directories: &unreadable_directories,
                // Until the disk has been read, a volume whose claim is gone may still be mounted.
                is_complete: is_complete && self.reconstruction.is_done(),
            };
            let (is_changed, pause) = self.claims.reconcile(inputs, &mut self.volumes, now);
            let removed = self.claims.take_removed_manifests();
            match (removed.is_empty(), is_changed) {
                (true, false) => return pause,
                (true, true) => self.merge_objects(),
                (false, _) => self.load_manifests(&removed),
            }
        }
        Some(Duration::ZERO)
    }
}

fn ticker(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Watches the manifests' directories. The receiver reports a change at once, and then whenever a manifest may have
/// changed. The watch is a task of its own because [`DirWatch::changed`] waits for changes to settle, and would start
/// over if another event of the agent's loop cancelled it.
fn watch_manifests(directories: &[PathBuf]) -> watch::Receiver<()> {
    let (changes, mut receiver) = watch::channel(());
    receiver.mark_changed();
    let directories: BTreeSet<PathBuf> = directories.iter().cloned().collect();
    tokio::spawn(async move {
        let mut watch = match DirWatch::new(&[]) {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::warn!(
                    "inotify: the manifests can't be watched: {error}; reading them every {} s instead",
                    MANIFEST_POLL_PERIOD.as_secs()
                );
                None
            }
        };
        if let Some(watch) = &mut watch {
            watch.set(&directories);
        }
        loop {
            if changes.send(()).is_err() {
                return;
            }
            match &mut watch {
                Some(watch) => watch.changed().await,
                None => sleep(MANIFEST_POLL_PERIOD).await,
            }
        }
    });
    receiver
}
