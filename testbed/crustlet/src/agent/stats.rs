//! Periodic measurements of the volumes that pods use.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc;

use super::Done;
use super::pods::Pods;
use super::volumes::Volumes;
use crate::events::Regarding;
use crate::metrics::VolumeStats;
use crate::objects::Name;
use crate::operations::{Context, MountingRuntime, Publication, stats};
use crate::volumes::actual::Certainty;

/// A volume that is measured.
#[derive(Debug)]
struct MeasuredVolume {
    publication: Publication,
    claim: Name,
    runtime: Option<MountingRuntime>,
    /// The pod; `None` if its manifest isn't known.
    regarding: Option<Regarding>,
    /// The abnormal condition that was reported last, so that it isn't reported again.
    before: Option<String>,
}

/// The last measurements, and the drivers that are being asked. Each is asked by itself: one that hangs holds up no
/// other.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// The last measurements of each driver.
    told: BTreeMap<String, Vec<VolumeStats>>,
    /// The abnormal condition that was reported last of each claim in each pod (by its uid).
    reported: BTreeMap<(String, Name), String>,
    under_way: BTreeSet<String>,
}

impl Measurements {
    /// Asks each driver that isn't being asked still, for one volume after another.
    pub(super) fn begin(
        &mut self,
        context: &Context,
        pods: &Pods,
        volumes: &Volumes,
        done: &mpsc::UnboundedSender<Done>,
    ) {
        let mut measured = measured(pods, volumes);
        self.keep(&measured);
        measured.retain(|driver, _| !self.under_way.contains(driver));
        for it in measured.values_mut().flatten() {
            let key = (it.publication.pod.clone(), it.claim.clone());
            it.before = self.reported.get(&key).cloned();
        }
        for (driver, volumes) in measured {
            self.under_way.insert(driver.clone());
            let (context, done) = (context.clone(), done.clone());
            tokio::spawn(async move {
                let told = measure(&context, volumes).await;
                let _ = done.send(Done::Measured(driver, told));
            });
        }
        self.show(context);
    }

    /// Keeps the measurements of claims in use, and drops the others.
    fn keep(&mut self, measured: &BTreeMap<String, Vec<MeasuredVolume>>) {
        self.told.retain(|driver, told| {
            let used = measured.get(driver).map_or(&[][..], Vec::as_slice);
            told.retain(|it| used.iter().any(|used| used.claim == it.claim));
            !told.is_empty()
        });
        self.reported.retain(|(pod, claim), _| {
            let mut used = measured.values().flatten();
            used.any(|it| it.publication.pod == *pod && it.claim == *claim)
        });
    }

    /// Takes the measurements of a driver.
    pub(super) fn take(&mut self, driver: String, told: Vec<VolumeStats>, context: &Context) {
        self.under_way.remove(&driver);
        for VolumeStats { pod, claim, stats } in &told {
            let key = (pod.clone(), claim.clone());
            match (&stats.condition, stats.abnormal()) {
                (_, Some(message)) => drop(self.reported.insert(key, message.to_owned())),
                (Some(_), None) => drop(self.reported.remove(&key)),
                // The driver didn't answer: what was reported may still be true.
                (None, None) => {}
            }
        }
        self.told.insert(driver, told);
        self.show(context);
    }

    fn show(&self, context: &Context) {
        let told = self.told.values().flatten().cloned();
        context.metrics.set_volume_stats(told.collect());
    }
}

async fn measure(context: &Context, measured: Vec<MeasuredVolume>) -> Vec<VolumeStats> {
    let mut told = Vec::new();
    for MeasuredVolume {
        publication,
        claim,
        runtime,
        regarding,
        before,
    } in measured
    {
        match stats(context, &publication, runtime.as_ref()).await {
            Ok(Some(stats)) => {
                // As kubelet's with the gate CSIVolumeHealth, but once for each condition.
                let abnormal = stats.abnormal().filter(|it| before.as_deref() != Some(*it));
                if let (Some(message), Some(pod)) = (abnormal, regarding) {
                    let message = format!("Volume {claim}: {message}");
                    context
                        .events
                        .warning(pod, "VolumeConditionAbnormal", message);
                }
                let pod = publication.pod;
                told.push(VolumeStats { pod, claim, stats });
            }
            Ok(None) => {}
            // As kubelet, that logs it alone.
            Err(error) => {
                let error = crust_state::sentence(&error);
                let (pod, id) = (&publication.pod, &publication.id);
                tracing::warn!("statistics of {id} in pod {pod}: {error}");
            }
        }
    }
    told
}

/// Volumes of claims in pods that run, by their drivers. A deferred one can't be measured before its pod's sandbox is
/// there.
fn measured(pods: &Pods, volumes: &Volumes) -> BTreeMap<String, Vec<MeasuredVolume>> {
    let mut measured: BTreeMap<String, Vec<MeasuredVolume>> = BTreeMap::new();
    for (id, volume) in &volumes.desired().volumes {
        for (uid, spec) in &volume.mounts {
            let mount = volumes.actual().mount(id, uid);
            let mount = mount.filter(|it| it.certainty == Certainty::Certain);
            let (Some(mount), Some(claim)) = (mount, &spec.volume.claim) else {
                continue;
            };
            let known = pods.known().get(uid);
            let observed = known.and_then(|it| it.observed.as_ref());
            if observed.is_none_or(|it| it.alive().next().is_none()) {
                continue;
            }
            measured
                .entry(id.driver.clone())
                .or_default()
                .push(MeasuredVolume {
                    publication: Publication {
                        id: id.clone(),
                        pod: uid.clone(),
                        directory: mount.directory.clone(),
                        mounter: mount.mounter,
                    },
                    claim: claim.clone(),
                    runtime: pods.telling(uid, spec, mount.mounter),
                    regarding: known.and_then(|it| it.pod.as_deref()).map(Regarding::from),
                    before: None,
                });
        }
    }
    measured
}
