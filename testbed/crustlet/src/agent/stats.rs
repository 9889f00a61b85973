//! Periodic measurements of the volumes that pods use.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc;

use super::Completion;
use super::pods::Pods;
use super::volumes::Volumes;
use crate::events::Regarding;
use crate::metrics::VolumeStats;
use crate::objects::Name;
use crate::operations::{Context, MountingRuntime, Publication, stats};
use crate::volumes::actual::Certainty;

#[derive(Debug)]
struct MeasuredVolume {
    publication: Publication,
    claim: Name,
    runtime: Option<MountingRuntime>,
    /// The pod to emit events about. `None` if its manifest isn't known.
    regarding: Option<Regarding>,
    /// The abnormal condition that the last event was about, so that no second event is emitted about it.
    reported_condition: Option<String>,
}

/// The last measurements. Each driver is asked in a task of its own, so that a driver that hangs doesn't delay others.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    by_driver: BTreeMap<String, Vec<VolumeStats>>,
    /// The abnormal condition that the last event was about, by the pod's UID and the claim.
    reported_conditions: BTreeMap<(String, Name), String>,
    /// The drivers that are being asked.
    in_progress: BTreeSet<String>,
}

impl Measurements {
    /// Starts the measurement of all volumes, except those of drivers that are still being asked. A driver is asked for
    /// one volume after the other.
    pub(super) fn begin(
        &mut self,
        context: &Context,
        pods: &Pods,
        volumes: &Volumes,
        completions: &mpsc::UnboundedSender<Completion>,
    ) {
        let mut to_measure = volumes_to_measure(pods, volumes);
        self.retain_used(&to_measure);
        to_measure.retain(|driver, _| !self.in_progress.contains(driver));
        for volume in to_measure.values_mut().flatten() {
            let key = (volume.publication.pod.clone(), volume.claim.clone());
            volume.reported_condition = self.reported_conditions.get(&key).cloned();
        }
        for (driver, volumes) in to_measure {
            self.in_progress.insert(driver.clone());
            let (context, completions) = (context.clone(), completions.clone());
            tokio::spawn(async move {
                let measurements = measure(&context, volumes).await;
                let _ = completions.send(Completion::VolumeStats(driver, measurements));
            });
        }
        self.export(context);
    }

    /// Drops the measurements of claims that aren't in use any more.
    fn retain_used(&mut self, in_use: &BTreeMap<String, Vec<MeasuredVolume>>) {
        self.by_driver.retain(|driver, measurements| {
            let used = in_use.get(driver).map_or(&[][..], Vec::as_slice);
            measurements
                .retain(|measurement| used.iter().any(|used| used.claim == measurement.claim));
            !measurements.is_empty()
        });
        self.reported_conditions.retain(|(pod, claim), _| {
            let mut used = in_use.values().flatten();
            used.any(|volume| volume.publication.pod == *pod && volume.claim == *claim)
        });
    }

    /// Records the measurements of a driver.
    pub(super) fn record(
        &mut self,
        driver: String,
        measurements: Vec<VolumeStats>,
        context: &Context,
    ) {
        self.in_progress.remove(&driver);
        for VolumeStats { pod, claim, stats } in &measurements {
            let key = (pod.clone(), claim.clone());
            match (&stats.condition, stats.abnormal()) {
                (_, Some(message)) => {
                    drop(self.reported_conditions.insert(key, message.to_owned()));
                }
                (Some(_), None) => drop(self.reported_conditions.remove(&key)),
                // The driver didn't report a condition. The last reported condition may still be true.
                (None, None) => {}
            }
        }
        self.by_driver.insert(driver, measurements);
        self.export(context);
    }

    /// Replaces the volume statistics in the metrics.
    fn export(&self, context: &Context) {
        let measurements = self.by_driver.values().flatten().cloned();
        context.metrics.set_volume_stats(measurements.collect());
    }
}

async fn measure(context: &Context, volumes: Vec<MeasuredVolume>) -> Vec<VolumeStats> {
    let mut measurements = Vec::new();
    for MeasuredVolume {
        publication,
        claim,
        runtime,
        regarding,
        reported_condition,
    } in volumes
    {
        match stats(context, &publication, runtime.as_ref()).await {
            Ok(Some(stats)) => {
                // The event of kubelet's gate CSIVolumeHealth, but only once for each condition.
                let abnormal = stats
                    .abnormal()
                    .filter(|message| reported_condition.as_deref() != Some(*message));
                if let (Some(message), Some(pod)) = (abnormal, regarding) {
                    let message = format!("Volume {claim}: {message}");
                    context
                        .events
                        .warning(pod, "VolumeConditionAbnormal", message);
                }
                let pod = publication.pod;
                measurements.push(VolumeStats { pod, claim, stats });
            }
            Ok(None) => {}
            // kubelet only logs such an error, too.
            Err(error) => {
                let error = crust_state::error_message(&error);
                let (pod, id) = (&publication.pod, &publication.id);
                tracing::warn!("cannot get the statistics of volume {id} in pod {pod}: {error}");
            }
        }
    }
    measurements
}

/// Returns the claims' volumes in running pods, by their drivers. A deferred volume can be measured only after its
/// pod's sandbox was created.
fn volumes_to_measure(pods: &Pods, volumes: &Volumes) -> BTreeMap<String, Vec<MeasuredVolume>> {
    let mut to_measure: BTreeMap<String, Vec<MeasuredVolume>> = BTreeMap::new();
    for (id, volume) in &volumes.desired().volumes {
        for (uid, spec) in &volume.mounts {
            let mount = volumes.actual().mount(id, uid);
            let mount = mount.filter(|mount| mount.certainty == Certainty::Certain);
            let (Some(mount), Some(claim)) = (mount, &spec.volume.claim) else {
                continue;
            };
            let known = pods.known().get(uid);
            let observed = known.and_then(|known| known.observed.as_ref());
            if observed.is_none_or(|observed| observed.alive().next().is_none()) {
                continue;
            }
            to_measure
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
                    runtime: pods.mounting_runtime(uid, spec, mount.mounter),
                    regarding: known
                        .and_then(|known| known.pod.as_deref())
                        .map(Regarding::from),
                    reported_condition: None,
                });
        }
    }
    to_measure
}
