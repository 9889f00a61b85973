//! What is counted, for Prometheus: kubelet's names, labels and buckets where kubelet has them, and those that the
//! KEPs add.

mod labels;
mod page;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

use labels::{CsiCall, NOT_MIGRATED, StorageOperation, plugin};
use snapshot::Snapshot;

use crust_serve::client::code_name;

pub(crate) use labels::Operation;
pub(crate) use page::serve;
pub(crate) use snapshot::VolumeStats;

/// kubelet's of both histograms, in seconds.
const BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// All of it.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    csi_calls: Family<CsiCall, Histogram, fn() -> Histogram>,
    operations: Family<StorageOperation, Histogram, fn() -> Histogram>,
    deferred: Counter,
    reconstructions: Failing,
    force_cleanups: Failing,
    orphans: Gauge,
    snapshot: Arc<Snapshot>,
}

/// What was tried, and what of it has failed.
#[derive(Debug, Clone, Default)]
struct Failing {
    all: Counter,
    failed: Counter,
}

impl Failing {
    fn count(&self, is_ok: bool) {
        self.all.inc();
        if !is_ok {
            self.failed.inc();
        }
    }
}

impl Metrics {
    /// Nothing counted yet.
    pub(crate) fn new() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut metrics = Self {
            registry: Registry::default(),
            csi_calls: Family::new_with_constructor(histogram),
            operations: Family::new_with_constructor(histogram),
            deferred: Counter::default(),
            reconstructions: Failing::default(),
            force_cleanups: Failing::default(),
            orphans: Gauge::default(),
            snapshot: Arc::default(),
        };
        metrics.register();
        metrics
    }

    /// The encoder adds `_total` to a counter's name.
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "csi_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
            self.csi_calls.clone(),
        );
        registry.register(
            "storage_operation_duration_seconds",
            "Storage operation duration",
            self.operations.clone(),
        );
        // KEP-2857, "Enhancements to Kubelet".
        registry.register(
            "volumes_published_with_deferred_ops",
            "NodePublishVolume with defer_fs_ops that returned successfully",
            self.deferred.clone(),
        );
        // KEP-3756, "Observability".
        for (name, help, counter) in [
            (
                "reconstruct_volume_operations",
                "Volumes that were attempted to be reconstructed from the operating system at the start",
                &self.reconstructions.all,
            ),
            (
                "reconstruct_volume_operations_errors",
                "Volumes that failed reconstruction from the operating system at the start",
                &self.reconstructions.failed,
            ),
            (
                "force_cleaned_failed_volume_operations",
                "Volumes that were force cleaned after their reconstruction failed at the start",
                &self.force_cleanups.all,
            ),
            (
                "force_cleaned_failed_volume_operation_errors",
                "Volumes that failed force cleanup after their reconstruction failed at the start",
                &self.force_cleanups.failed,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        // No counter, for all its name: "nr of errors during the last housekeeping sweep".
        registry.register(
            "orphaned_volumes_cleanup_errors_total",
            "Errors of the last sweep over the directories of pods that are gone",
            self.orphans.clone(),
        );
        registry.register_collector(Box::new(Arc::clone(&self.snapshot)));
    }

    /// A driver was called.
    pub(crate) fn csi_call(
        &self,
        driver: &str,
        method: &'static str,
        code: Code,
        elapsed: Duration,
    ) {
        let call = CsiCall {
            driver_name: driver.to_owned(),
            method_name: method,
            grpc_status_code: code_name(code),
            migrated: NOT_MIGRATED,
        };
        let seconds = elapsed.as_secs_f64();
        self.csi_calls.get_or_create(&call).observe(seconds);
    }

    /// Something was done to a volume of a driver's, from its start to its end.
    pub(crate) fn operation(
        &self,
        driver: &str,
        operation: Operation,
        is_ok: bool,
        elapsed: Duration,
    ) {
        let operation = StorageOperation {
            volume_plugin: plugin(driver),
            operation_name: operation.as_str(),
            status: if is_ok { "success" } else { "fail-unknown" },
            migrated: NOT_MIGRATED,
        };
        let seconds = elapsed.as_secs_f64();
        self.operations.get_or_create(&operation).observe(seconds);
    }

    /// A volume was published with `defer_fs_ops`.
    pub(crate) fn published_deferred(&self) {
        self.deferred.inc();
    }

    /// A volume was rebuilt from the disk, or couldn't be.
    pub(crate) fn reconstructed(&self, is_ok: bool) {
        self.reconstructions.count(is_ok);
    }

    /// A volume that couldn't be rebuilt was cleaned up by force, or couldn't be.
    pub(crate) fn force_cleaned(&self, is_ok: bool) {
        self.force_cleanups.count(is_ok);
    }

    /// The directories of pods that are gone were looked at, and so many couldn't be cleaned up.
    pub(crate) fn orphans_swept(&self, errors: usize) {
        self.orphans.set(i64::try_from(errors).unwrap_or(i64::MAX));
    }

    /// What is known of the volumes now, in place of what was.
    pub(crate) fn set_volume_stats(&self, stats: Vec<VolumeStats>) {
        self.snapshot.set_stats(stats);
    }

    /// How many volumes are wanted and how many there are: the driver of each.
    pub(crate) fn set_total_volumes<'a>(
        &self,
        desired: impl IntoIterator<Item = &'a str>,
        actual: impl IntoIterator<Item = &'a str>,
    ) {
        self.snapshot.set_totals(desired, actual);
    }

    /// As Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // A String takes everything.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests;
