//! The task that knows the desired and the actual state, and begins the steps from one to the other.
//!
//! It never waits for anything but the next thing that happens: manifests that change, drivers that come and go,
//! what the container runtime says, operations that end, questions. Whatever takes time is a task of its own, at
//! most one for a volume and one for a pod, which tells how it ended.

mod claims;
mod deferral;
mod driver_warnings;
mod listing;
mod pods;
mod restart;
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

use crate::admission::{Policy, admit_all};
use crate::api::Question;
use crate::cri::{Cri, CriError};
use crate::metrics::VolumeStats;
use crate::objects::{Objects, Pod};
use crate::operations::Context;
use crate::plugins::DriverChanges;
use crate::pods::observed::Observed;
use crate::settings::{FeatureGates, Settings};
use crate::sources::{self, LoadedManifests, ManifestDirectories, SourceError};
use crate::volumes::plan::AllowedSteps;
use crate::watch::DirWatch;

use claims::{ClaimDone, Claims};
use driver_warnings::DriverWarnings;
use listing::{ListingInputs, documents};
use pods::{Ages, Pods, Swept};
use restart::Restart;
use stats::Measurements;
use step::PodDone;
use volumes::{VolumeDone, Volumes};

/// How often the container runtime is asked for what it has, as kubelet does.
const RELIST: Duration = Duration::from_secs(1);

/// How often manifests are read where nobody tells when they change.
const BLIND: Duration = Duration::from_secs(5);

/// What ended.
#[derive(Debug)]
pub(crate) enum Done {
    /// An operation of a volume's.
    Volume(VolumeDone),
    /// A step of a pod's.
    Pod(PodDone),
    /// What was left of a pod on the disk was removed, or not.
    Swept(Swept),
    /// The container runtime was asked for all pods.
    Listed(Ages, Result<BTreeMap<String, Observed>, CriError>),
    /// The container runtime has said what it is called.
    Named(String),
    /// Something of a claim's.
    Claim(ClaimDone),
    /// A driver's volumes were measured.
    Measured(String, Vec<VolumeStats>),
}

/// The task's state.
#[derive(Debug)]
pub(crate) struct Agent {
    context: Context,
    gates: FeatureGates,
    cri: Cri,
    /// Its name, which is part of containers' ids; empty until it is known.
    runtime: String,
    directories: Vec<PathBuf>,
    sources: ManifestDirectories,
    /// What is written.
    loaded: LoadedManifests,
    /// The same, with what was decided laid over it.
    objects: Arc<Objects>,
    policy: Policy,
    claims: Claims,
    /// When manifests are to be read again though nobody tells of a change.
    again: Option<Instant>,
    told: Vec<SourceError>,
    ignored: DriverWarnings,
    pods: Pods,
    volumes: Volumes,
    restart: Restart,
    is_listing: bool,
    measuring: Measurements,
    period: Duration,
    questions: mpsc::UnboundedReceiver<Question>,
    done: (mpsc::UnboundedSender<Done>, mpsc::UnboundedReceiver<Done>),
}

impl Agent {
    /// What is on the disk is looked at here, before anything else is known (KEP-3756).
    pub(crate) fn new(
        settings: &Settings,
        context: Context,
        cri: Cri,
        questions: mpsc::UnboundedReceiver<Question>,
    ) -> Result<Self> {
        let done = mpsc::unbounded_channel();
        let mut volumes = Volumes::new(context.clone(), done.0.clone());
        let mut restart = Restart::new(settings.feature_gates, &context, &mut volumes)?;
        let mut pods = Pods::new(settings, &context, cri.clone(), done.0.clone());
        pods.found(restart.pods());
        let directories = settings.manifests();
        for directory in &directories {
            if let Err(error) = sources::remove_temporary_files(directory) {
                tracing::warn!("manifests: {}", crust_state::sentence(&error));
            }
        }
        let policy = settings.admission_policy.as_deref().map(Policy::load);
        Ok(Self {
            gates: settings.feature_gates,
            sources: ManifestDirectories::new(&directories),
            pods,
            directories,
            loaded: LoadedManifests::default(),
            objects: Arc::default(),
            policy: policy.transpose()?.unwrap_or_default(),
            claims: Claims::open(&context, done.0.clone())?,
            again: None,
            told: Vec::new(),
            ignored: DriverWarnings::default(),
            volumes,
            restart,
            is_listing: false,
            measuring: Measurements::default(),
            period: settings.volume_stats_agg_period,
            context,
            cri,
            runtime: String::new(),
            questions,
            done,
        })
    }

    /// Until it is dropped.
    pub(crate) async fn run(mut self) {
        // Whoever asks first is told what is written, and not that there is nothing.
        self.load(&[]);
        let mut manifests = watched(&self.directories);
        let mut drivers = self.context.drivers.subscribe();
        let mut known = DriverChanges::default();
        let mut relist = every(RELIST);
        let mut measure = every(self.period);
        // The first tick is at once, and there is nothing to measure yet.
        measure.reset();
        loop {
            let pause = self.reconcile();
            let again = async {
                match pause {
                    Some(pause) => sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(done) = self.done.1.recv() => self.take(done),
                Some(question) = self.questions.recv() => self.answer(question),
                Ok(()) = manifests.changed() => self.load(&[]),
                Ok(()) = drivers.changed() => {
                    let now = drivers.borrow_and_update().clone();
                    let changed = now.since(&std::mem::replace(&mut known, now.clone()));
                    self.volumes.drivers_changed(&changed);
                    self.claims.drivers_changed(changed);
                }
                _ = relist.tick() => self.list(),
                _ = measure.tick() => self.measure(),
                () = again => {}
            }
        }
    }

    /// Reads the manifests; `gone` are those that were taken away here.
    fn load(&mut self, gone: &[PathBuf]) {
        let now = Instant::now();
        self.loaded = self.sources.read(gone, now);
        self.again = self.loaded.retry_after.map(|pause| now + pause);
        self.compose();
        for error in &self.loaded.errors {
            if !self.told.contains(error) {
                tracing::warn!("manifests: {error}");
            }
        }
        self.told.clone_from(&self.loaded.errors);
        self.ignored.tell(&self.objects, &self.context.events);
    }

    /// What there is: what is written, what was decided about it, and which volumes are deferred.
    fn compose(&mut self) {
        let mut objects = self.claims.records().view(&self.loaded.objects);
        if self.gates.runtime_assisted_mount {
            admit_all(&self.policy, &mut objects);
        } else {
            objects.ignore_deferral();
        }
        self.objects = Arc::new(objects);
    }

    fn list(&mut self) {
        if std::mem::replace(&mut self.is_listing, true) {
            return;
        }
        let (cri, done, ages) = (self.cri.clone(), self.done.0.clone(), self.pods.ages());
        let is_named = !self.runtime.is_empty();
        tokio::spawn(async move {
            if !is_named && let Ok(version) = cri.version().await {
                let _ = done.send(Done::Named(version.runtime_name));
            }
            let _ = done.send(Done::Listed(ages, cri.pods().await));
        });
    }

    fn take(&mut self, done: Done) {
        match done {
            Done::Volume(done) => self.volumes.take(done, self.pods.written()),
            Done::Swept(swept) => self.pods.swept(&swept),
            Done::Pod(done) => {
                self.pods.take(done);
                self.pods.show(&self.runtime);
            }
            Done::Listed(ages, listed) => {
                self.is_listing = false;
                match listed {
                    Ok(observed) => {
                        self.pods.observe(observed, &ages);
                        self.pods.show(&self.runtime);
                    }
                    Err(error) => self.pods.unseen(&error),
                }
            }
            Done::Claim(done) => {
                if self.claims.take(done, &mut self.volumes) {
                    self.compose();
                }
            }
            Done::Named(runtime) => self.runtime = runtime,
            Done::Measured(driver, told) => self.measuring.take(driver, told, &self.context),
        }
    }

    fn measure(&mut self) {
        self.measuring
            .begin(&self.context, &self.pods, &self.volumes, &self.done.0);
    }

    fn answer(&mut self, question: Question) {
        // Whoever asked may have hung up.
        match question {
            Question::Load(gone, answer) => {
                self.load(gone.as_slice());
                self.pods.want(&self.objects, &self.loaded.objects);
                let _ = answer.send(());
            }
            Question::List(listed, answer) => {
                self.pods.show(&self.runtime);
                let look = ListingInputs {
                    loaded: &self.loaded,
                    objects: &self.objects,
                    records: self.claims.records(),
                    pods: &self.pods,
                    volumes: &self.volumes,
                    context: &self.context,
                };
                let _ = answer.send(documents(look, &listed));
            }
            Question::Begun(answer) => {
                let begun = deferral::of_begun(&self.objects, &self.pods, &self.volumes);
                let _ = answer.send(begun);
            }
            Question::DeleteVolume(name, answer) => {
                let deleted = self.claims.delete_volume(&name);
                self.compose();
                let _ = answer.send(deleted.map_err(|error| crust_state::sentence(&error)));
            }
            Question::Container(pod, container, answer) => {
                let _ = answer.send(self.pods.container(&pod, &container));
            }
        }
    }

    /// Begins what can be begun; when to look again though nothing happens.
    fn reconcile(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.again.is_some_and(|again| again <= now) {
            self.load(&[]);
        }
        let again = self.again.map(|again| again.saturating_duration_since(now));
        let is_known = self.loaded.is_complete && self.pods.are_listed();
        let claims = self.decide_claims(is_known, now);
        let objects = Arc::clone(&self.objects);
        self.pods.want(&objects, &self.loaded.objects);
        let wanting: Vec<Arc<Pod>> = self.pods.wanting_volumes();
        self.volumes.want(&objects, &wanting, now);
        let running: BTreeSet<String> = self.pods.running();
        if is_known {
            self.restart
                .go_on(&self.context, &mut self.volumes, &running);
            self.pods.found(self.restart.pods());
        }
        let allowed = AllowedSteps {
            may_unmount: is_known,
            running: &running,
            started: &self.pods.begun(),
        };
        let volumes = self
            .volumes
            .step(&objects, self.pods.written(), allowed, now);
        let (gone, pods) = self
            .pods
            .step(&self.loaded, &objects, &self.volumes, is_known);
        self.volumes.count();
        if let Some(gone) = gone {
            // Whoever is written there by now is another one.
            self.load(&[gone]);
            return Some(Duration::ZERO);
        }
        [again, claims, volumes, pods].into_iter().flatten().min()
    }

    /// What is written of a claim may be all that the next step waited for.
    fn decide_claims(&mut self, is_known: bool, now: Instant) -> Option<Duration> {
        let broken = self.restart.broken();
        for _ in 0..Claims::rounds() {
            let look = claims::ClaimInputs {
                loaded: &self.loaded,
                objects: &self.objects,
                pods: &self.pods,
                broken: &broken,
                // What is on the disk may be a volume's that nobody has any more.
                is_known: is_known && self.restart.has_looked(),
            };
            let (is_changed, pause) = self.claims.step(look, &mut self.volumes, now);
            let gone = self.claims.gone();
            match (gone.is_empty(), is_changed) {
                (true, false) => return pause,
                (true, true) => self.compose(),
                (false, _) => self.load(&gone),
            }
        }
        Some(Duration::ZERO)
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Told when manifests may have changed; at once, too. A task of its own, for what watches waits a little: whatever
/// else happens meanwhile would have it wait anew.
fn watched(directories: &[PathBuf]) -> watch::Receiver<()> {
    let (told, mut receiver) = watch::channel(());
    receiver.mark_changed();
    let directories: BTreeSet<PathBuf> = directories.iter().cloned().collect();
    tokio::spawn(async move {
        let mut watch = match DirWatch::new(&[]) {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::warn!(
                    "inotify: {error}; manifests are read every {} s",
                    BLIND.as_secs()
                );
                None
            }
        };
        if let Some(watch) = &mut watch {
            watch.set(&directories);
        }
        loop {
            if told.send(()).is_err() {
                return;
            }
            match &mut watch {
                Some(watch) => watch.changed().await,
                None => sleep(BLIND).await,
            }
        }
    });
    receiver
}
