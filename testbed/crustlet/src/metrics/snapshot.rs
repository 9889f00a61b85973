//! Metrics of the volumes that exist now. The metrics of a volume that is gone are no longer exported.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::labels::{ClaimLabels, VolumeStateLabels, plugin};
use crate::objects::Name;
use crate::volumes::stats::Stats;

/// The statistics of a claim's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeStats {
    /// The UID of the pod in which the volume was measured.
    pub(crate) pod: String,
    pub(crate) claim: Name,
    pub(crate) stats: Stats,
}

/// The current values of the volumes' metrics.
#[derive(Debug, Default)]
pub(super) struct Snapshot(Mutex<SnapshotData>);

#[derive(Debug, Default)]
struct SnapshotData {
    stats: Vec<(ClaimLabels, Stats)>,
    totals: BTreeMap<VolumeStateLabels, i64>,
}

impl Snapshot {
    /// Replaces the statistics of all volumes.
    pub(super) fn set_stats(&self, stats: Vec<VolumeStats>) {
        // A claim that several pods use is exported once, because Prometheus refuses two samples of one series.
        let mut claims: BTreeMap<Name, Stats> = BTreeMap::new();
        for VolumeStats { claim, stats, .. } in stats {
            let exported = claims.entry(claim).or_insert_with(|| stats.clone());
            // The worse of two conditions is exported, and a known condition rather than an unknown one.
            if is_abnormal(&stats) > is_abnormal(exported) {
                exported.condition = stats.condition;
            }
        }
        let label = |name: Name| ClaimLabels {
            namespace: name.namespace,
            persistentvolumeclaim: name.name,
        };
        let stats = claims
            .into_iter()
            .map(|(claim, stats)| (label(claim), stats));
        self.with_data(|data| data.stats = stats.collect());
    }

    /// Replaces the numbers of volumes. The arguments have the name of the driver of each volume.
    pub(super) fn set_totals<'a>(
        &self,
        desired: impl IntoIterator<Item = &'a str>,
        actual: impl IntoIterator<Item = &'a str>,
    ) {
        let mut totals = BTreeMap::new();
        let mut count = |driver: &str, state| {
            let plugin_name = plugin(driver);
            let state = VolumeStateLabels { plugin_name, state };
            *totals.entry(state).or_default() += 1;
        };
        for driver in desired {
            count(driver, "desired_state_of_world");
        }
        for driver in actual {
            count(driver, "actual_state_of_world");
        }
        self.with_data(|data| data.totals = totals);
    }

    fn with_data<T>(&self, act: impl FnOnce(&mut SnapshotData) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns whether a volume is abnormal. `None` if that isn't known.
fn is_abnormal(stats: &Stats) -> Option<bool> {
    stats.condition.as_ref().map(|condition| condition.abnormal)
}

/// A metric of a claim's volume: its name, its help text, and the function that returns its value, or `None` if that
/// isn't known.
type VolumeGauge = (&'static str, &'static str, fn(&Stats) -> Option<i64>);

const ABNORMAL_HELP: &str = "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy";

/// The metrics of claims' volumes. The first seven are kubelet's. The last repeats the seventh under KEP-2857's name.
const VOLUME_GAUGES: [VolumeGauge; 8] = [
    (
        "kubelet_volume_stats_capacity_bytes",
        "Capacity in bytes of the volume",
        |stats| stats.bytes.map(|usage| usage.total),
    ),
    (
        "kubelet_volume_stats_available_bytes",
        "Number of available bytes in the volume",
        |stats| stats.bytes.map(|usage| usage.available),
    ),
    (
        "kubelet_volume_stats_used_bytes",
        "Number of used bytes in the volume",
        |stats| stats.bytes.map(|usage| usage.used),
    ),
    (
        "kubelet_volume_stats_inodes",
        "Maximum number of inodes in the volume",
        |stats| stats.inodes.map(|usage| usage.total),
    ),
    (
        "kubelet_volume_stats_inodes_free",
        "Number of free inodes in the volume",
        |stats| stats.inodes.map(|usage| usage.available),
    ),
    (
        "kubelet_volume_stats_inodes_used",
        "Number of used inodes in the volume",
        |stats| stats.inodes.map(|usage| usage.used),
    ),
    (
        "kubelet_volume_stats_health_status_abnormal",
        ABNORMAL_HELP,
        |stats| is_abnormal(stats).map(i64::from),
    ),
    (
        "volume_stats_health_status_abnormal",
        ABNORMAL_HELP,
        |stats| is_abnormal(stats).map(i64::from),
    ),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.with_data(|data| {
            for (name, help, value) in VOLUME_GAUGES {
                let stats = data.stats.iter();
                let known = stats.filter_map(|(claim, stats)| Some((claim, value(stats)?)));
                gauge(&mut encoder, name, help, known)?;
            }
            let totals = data.totals.iter().map(|(state, count)| (state, *count));
            let help = "Number of volumes in Volume Manager";
            gauge(&mut encoder, "volume_manager_total_volumes", help, totals)
        })
    }
}

fn gauge<'a, L: EncodeLabelSet + 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (&'a L, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        ConstGauge::new(value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}
