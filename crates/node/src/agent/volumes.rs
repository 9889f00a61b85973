//! Volumes: what is wanted, what there is, and the operations between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Done;
use crate::metrics::Operation;
use crate::objects::{Objects, Pod};
use crate::operations::{
    Attempt, Broken, Context, Found, Late, OperationError, Publication, Published, publish, stage,
    unpublish, unstage,
};
use crate::volumes::actual::{Actual, Certainty, Mount, Mounter};
use crate::volumes::backoff::Backoff;
use crate::volumes::desired::{Desired, Problems};
use crate::volumes::plan::{Allowed, Step, plan};
use crate::volumes::spec::{Lifecycle, MountSpec, VolumeId};

/// All volumes of the node.
#[derive(Debug)]
pub(crate) struct Volumes {
    context: Context,
    done: mpsc::UnboundedSender<Done>,
    desired: Desired,
    actual: Actual,
    backoff: Backoff<(VolumeId, Step)>,
    under_way: BTreeMap<VolumeId, Step>,
    /// Why the last operation of a volume failed.
    failed: BTreeMap<(VolumeId, Step), String>,
    /// What pods were told already.
    told: BTreeMap<String, Problems>,
}

/// An operation has ended.
#[derive(Debug)]
pub(crate) struct VolumeDone {
    id: VolumeId,
    step: Step,
    mount: Option<Box<MountSpec>>,
    result: Result<Option<Published>, Attempt>,
}

impl Volumes {
    /// None are known yet.
    pub(crate) fn new(context: Context, done: mpsc::UnboundedSender<Done>) -> Self {
        Self {
            context,
            done,
            desired: Desired::default(),
            actual: Actual::default(),
            backoff: Backoff::default(),
            under_way: BTreeMap::new(),
            failed: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// What is wanted.
    pub(crate) const fn desired(&self) -> &Desired {
        &self.desired
    }

    /// What there is.
    pub(crate) const fn actual(&self) -> &Actual {
        &self.actual
    }

    /// What is being done.
    pub(crate) const fn under_way(&self) -> &BTreeMap<VolumeId, Step> {
        &self.under_way
    }

    /// Why what was tried last failed.
    pub(crate) const fn failed(&self) -> &BTreeMap<(VolumeId, Step), String> {
        &self.failed
    }

    /// Takes in what was found on the disk: each may be there (KEP-3756). What is known already counts.
    pub(crate) fn found(&mut self, found: &Found) {
        for id in &found.staged {
            let volume = self.actual.entry(id, Lifecycle::Persistent);
            volume.staged = volume.staged.or(Some(Certainty::Uncertain));
        }
        for (publication, lifecycle) in &found.published {
            let volume = self.actual.entry(&publication.id, *lifecycle);
            let mounts = &mut volume.mounts;
            mounts
                .entry(publication.pod.clone())
                .or_insert_with(|| Mount {
                    certainty: Certainty::Uncertain,
                    directory: publication.directory.clone(),
                    mounter: publication.mounter,
                    late: None,
                });
        }
    }

    /// Whether a directory that can't be told what it is will be a volume's again.
    pub(crate) fn wants(&self, broken: &Broken) -> bool {
        let layout = &self.context.layout;
        let mut volumes = self.desired.volumes.iter();
        volumes.any(|(id, volume)| {
            let mut mounts = volume.mounts.iter();
            layout.staged(id) == broken.path
                || mounts.any(|(pod, it)| layout.volume(pod, &it.volume.directory) == broken.path)
        })
    }

    /// What these pods want from now on.
    pub(crate) fn want(&mut self, objects: &Objects, pods: &[Arc<Pod>]) {
        self.desired = Desired::of(objects, pods, &self.actual.holders());
        for pod in pods {
            let problems = self.desired.problems.get(&pod.uid);
            let problems = problems.cloned().unwrap_or_default();
            let told = self.told.insert(pod.uid.clone(), problems.clone());
            for (volume, problem) in &problems {
                if told.as_ref().and_then(|told| told.get(volume)) != Some(problem) {
                    let message =
                        format!("MountVolume.SetUp failed for volume {volume:?} : {problem}");
                    let events = &self.context.events;
                    events.warning(pod.as_ref(), "FailedMount", message);
                }
            }
        }
        let is_there = |uid: &String| pods.iter().any(|pod| pod.uid == *uid);
        self.told.retain(|uid, _| is_there(uid));
    }

    /// Begins what can be done now; when to look again at what failed.
    pub(crate) fn step(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        allowed: Allowed<'_>,
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
                self.begin(objects, pods, id, step);
            }
        }
        self.backoff.retain(|key| kept.contains(key));
        let under_way = &self.under_way;
        self.failed
            .retain(|key, _| kept.contains(key) || under_way.get(&key.0) == Some(&key.1));
        pause
    }

    /// Tries at once what failed for a driver that wasn't there, or was another.
    pub(crate) fn drivers_changed(&mut self) {
        self.backoff = Backoff::default();
    }

    fn begin(
        &mut self,
        objects: &Arc<Objects>,
        pods: &BTreeMap<String, Arc<Pod>>,
        id: VolumeId,
        step: Step,
    ) {
        let mount = match &step {
            Step::Publish(pod) => self.mount_of(&id, pod),
            Step::Stage => {
                let volume = self.desired.volumes.get(&id);
                volume.and_then(|it| it.mounts.values().next().cloned())
            }
            Step::Unpublish(_) | Step::Unstage => None,
        };
        let wanted = self
            .desired
            .volumes
            .get(&id)
            .filter(|_| step == Step::Stage);
        let wanted: Vec<MountSpec> =
            wanted.map_or_else(Vec::new, |it| it.mounts.values().cloned().collect());
        let pod = match &step {
            Step::Publish(pod) => pods.get(pod).cloned(),
            _ => None,
        };
        let publication = match &step {
            Step::Unpublish(pod) => self.publication(&id, pod),
            _ => None,
        };
        self.under_way.insert(id.clone(), step.clone());
        let (context, objects, done) =
            (self.context.clone(), Arc::clone(objects), self.done.clone());
        tokio::spawn(async move {
            let begun = Instant::now();
            let result = match (&step, &mount, pod, publication) {
                (Step::Stage, ..) => stage(&context, &objects, &wanted).await.map(|()| None),
                (Step::Publish(_), Some(mount), Some(pod), _) => {
                    publish(&context, &objects, &pod, mount).await.map(Some)
                }
                (Step::Unpublish(_), _, _, Some(publication)) => {
                    let ended = unpublish(&context, &publication).await;
                    ended.map(|()| None).map_err(Attempt::within)
                }
                (Step::Unstage, ..) => {
                    let ended = unstage(&context, &id).await;
                    ended.map(|()| None).map_err(Attempt::within)
                }
                // Who wanted it has gone since.
                _ => Err(Attempt::before(OperationError::Nobody)),
            };
            let operation = match step {
                Step::Stage | Step::Publish(_) => Operation::Mount,
                Step::Unpublish(_) => Operation::Unmount,
                Step::Unstage => Operation::UnmountDevice,
            };
            let metrics = &context.metrics;
            metrics.operation(&id.driver, operation, result.is_ok(), begun.elapsed());
            let mount = mount.map(Box::new);
            let ended = VolumeDone {
                id,
                step,
                mount,
                result,
            };
            // Nobody hears of it where the process ends.
            let _ = done.send(Done::Volume(ended));
        });
    }

    /// A pod's mount as it is wanted; one that is there stays deferred or not, whatever was written since.
    fn mount_of(&self, id: &VolumeId, pod: &str) -> Option<MountSpec> {
        let mut mount = self.desired.volumes.get(id)?.mounts.get(pod)?.clone();
        if let Some(there) = self.actual.mount(id, pod) {
            mount.deferred = there.mounter == Mounter::Deferred;
        }
        Some(mount)
    }

    fn publication(&self, id: &VolumeId, pod: &str) -> Option<Publication> {
        let mount = self.actual.mount(id, pod)?;
        Some(Publication {
            id: id.clone(),
            pod: pod.to_owned(),
            directory: mount.directory.clone(),
            mounter: mount.mounter,
        })
    }

    /// What an operation came to.
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
            Err(Attempt { error, has_begun }) => {
                let pause = self.backoff.fail(&key, Instant::now());
                if has_begun {
                    self.uncertain(&key, mount.as_deref());
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

    /// It may be there now, or not.
    fn uncertain(&mut self, (id, step): &(VolumeId, Step), spec: Option<&MountSpec>) {
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

    /// Tells how many there are.
    pub(crate) fn count(&self) {
        let (desired, actual) = (self.desired.volumes.keys(), self.actual.volumes.keys());
        let metrics = &self.context.metrics;
        metrics.set_total_volumes(
            desired.map(|id| id.driver.as_str()),
            actual.map(|id| id.driver.as_str()),
        );
    }

    /// Whether a pod has all of its volumes.
    pub(crate) fn are_ready(&self, pod: &Pod) -> bool {
        let mut wanted = self.desired.of_pod(&pod.uid);
        !self.desired.problems.contains_key(&pod.uid)
            && wanted.all(|(id, _)| {
                let mount = self.actual.mount(id, &pod.uid);
                mount.is_some_and(|it| it.certainty == Certainty::Certain)
            })
    }

    /// What a pod's runtime handler is to be told of, once the sandbox is there.
    pub(crate) fn late(&self, uid: &str) -> Vec<Late> {
        let wanted = self.desired.of_pod(uid);
        let late = wanted.filter_map(|(id, mount)| {
            let there = self.actual.mount(id, uid)?;
            Some(Late {
                target: self.context.layout.target(uid, &there.directory),
                info: there.late.clone()?,
                mount: mount.clone(),
            })
        });
        late.collect()
    }

    /// Whether a pod's runtime handler has to be told of something.
    pub(crate) fn has_late(&self, uid: &str) -> bool {
        let mut wanted = self.desired.of_pod(uid);
        wanted.any(|(id, _)| {
            self.actual
                .mount(id, uid)
                .is_some_and(|it| it.late.is_some())
        })
    }

    /// Who has mounted a pod's volumes.
    pub(crate) fn mounters(&self, uid: &str) -> BTreeMap<VolumeId, Mounter> {
        let volumes = self.actual.volumes.iter();
        volumes
            .filter_map(|(id, volume)| Some((id.clone(), volume.mounts.get(uid)?.mounter)))
            .collect()
    }

    /// Whether nothing of a pod's volumes is there, or being made.
    pub(crate) fn are_gone(&self, uid: &str) -> bool {
        let is_coming = |step: &Step| matches!(step, Step::Publish(pod) if pod == uid);
        !self.actual.has_mounts_of(uid) && !self.under_way.values().any(is_coming)
    }
}

fn reason(step: &Step) -> &'static str {
    match step {
        Step::Stage | Step::Publish(_) => "FailedMount",
        Step::Unpublish(_) | Step::Unstage => "FailedUnMount",
    }
}
