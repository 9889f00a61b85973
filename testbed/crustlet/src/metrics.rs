//! crustlet's metrics, and the pages that Prometheus and probes read. Names, labels and buckets are taken from kubelet
//! or the KEPs.

mod labels;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use crust_serve::go_code;
use crust_serve::http::{self, Listener, Page, Pages};
use crust_serve::metrics::{page, registered};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

use labels::{CsiCallLabels, NOT_MIGRATED, StorageOperationLabels, plugin};
use snapshot::Snapshot;

pub(crate) use labels::StorageOperation;
pub(crate) use snapshot::VolumeStats;

/// The buckets of both histograms, in seconds. kubelet has the same buckets.
const DURATION_BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    csi_calls: Family<CsiCallLabels, Histogram, fn() -> Histogram>,
    operations: Family<StorageOperationLabels, Histogram, fn() -> Histogram>,
    deferred: Counter,
    reconstructions: AttemptCounters,
    force_cleanups: AttemptCounters,
    orphan_errors: Gauge,
    snapshot: Arc<Snapshot>,
}

/// The numbers of all attempts and of the failed ones.
#[derive(Debug)]
struct AttemptCounters {
    attempts: Counter,
    failed: Counter,
}

impl AttemptCounters {
    fn count(&self, is_ok: bool) {
        self.attempts.inc();
        if !is_ok {
            self.failed.inc();
        }
    }
}

impl Metrics {
    /// Registers all metrics, with zero values.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS);
        let csi_calls = Family::new_with_constructor(histogram);
        registry.register(
            "csi_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
            csi_calls.clone(),
        );
        let operations = Family::new_with_constructor(histogram);
        registry.register(
            "storage_operation_duration_seconds",
            "Storage operation duration",
            operations.clone(),
        );
        // KEP-2857, "Enhancements to Kubelet".
        let deferred = registered(
            &mut registry,
            "volumes_published_with_deferred_ops",
            "NodePublishVolume with defer_fs_ops that returned successfully",
        );
        // KEP-3756, "Observability".
        let reconstructions = AttemptCounters {
            attempts: registered(
                &mut registry,
                "reconstruct_volume_operations",
                "Volumes that were attempted to be reconstructed from the operating system at the start",
            ),
            failed: registered(
                &mut registry,
                "reconstruct_volume_operations_errors",
                "Volumes that failed reconstruction from the operating system at the start",
            ),
        };
        let force_cleanups = AttemptCounters {
            attempts: registered(
                &mut registry,
                "force_cleaned_failed_volume_operations",
                "Volumes that were force cleaned after their reconstruction failed at the start",
            ),
            failed: registered(
                &mut registry,
                "force_cleaned_failed_volume_operation_errors",
                "Volumes that failed force cleanup after their reconstruction failed at the start",
            ),
        };
        // A gauge in spite of its name (KEP-3756: "nr of errors during the last housekeeping sweep").
        let orphan_errors = registered(
            &mut registry,
            "orphaned_volumes_cleanup_errors_total",
            "Directories of ended pods that could not be removed at the last attempt",
        );
        let snapshot: Arc<Snapshot> = Arc::default();
        registry.register_collector(Box::new(Arc::clone(&snapshot)));
        Self {
            registry,
            csi_calls,
            operations,
            deferred,
            reconstructions,
            force_cleanups,
            orphan_errors,
            snapshot,
        }
    }

    /// Records a call to a driver.
    pub(crate) fn csi_call(
        &self,
        driver: &str,
        method: &'static str,
        code: Code,
        elapsed: Duration,
    ) {
        let call = CsiCallLabels {
            driver_name: driver.to_owned(),
            method_name: method,
            grpc_status_code: go_code(code),
            migrated: NOT_MIGRATED,
        };
        let seconds = elapsed.as_secs_f64();
        self.csi_calls.get_or_create(&call).observe(seconds);
    }

    /// Records an operation on a driver's volume.
    pub(crate) fn operation(
        &self,
        driver: &str,
        operation: StorageOperation,
        is_ok: bool,
        elapsed: Duration,
    ) {
        let operation = StorageOperationLabels {
            volume_plugin: plugin(driver),
            operation_name: operation.as_str(),
            status: if is_ok { "success" } else { "fail-unknown" },
            migrated: NOT_MIGRATED,
        };
        let seconds = elapsed.as_secs_f64();
        self.operations.get_or_create(&operation).observe(seconds);
    }

    /// Counts a volume that was published with `defer_fs_ops`.
    pub(crate) fn count_deferred_publish(&self) {
        self.deferred.inc();
    }

    /// Counts an attempt to reconstruct a volume from the disk.
    pub(crate) fn reconstructed(&self, is_ok: bool) {
        self.reconstructions.count(is_ok);
    }

    /// Counts an attempt to clean up a volume that couldn't be reconstructed.
    pub(crate) fn count_force_cleanup(&self, is_ok: bool) {
        self.force_cleanups.count(is_ok);
    }

    /// Sets the number of ended pods whose directories couldn't be removed.
    pub(crate) fn set_orphan_errors(&self, errors: usize) {
        self.orphan_errors
            .set(i64::try_from(errors).unwrap_or(i64::MAX));
    }

    /// Replaces the statistics of all claims' volumes.
    pub(crate) fn set_volume_stats(&self, stats: Vec<VolumeStats>) {
        self.snapshot.set_stats(stats);
    }

    /// Replaces the numbers of desired and actual volumes. The arguments have the name of the driver of each volume.
    pub(crate) fn set_total_volumes<'a>(
        &self,
        desired: impl IntoIterator<Item = &'a str>,
        actual: impl IntoIterator<Item = &'a str>,
    ) {
        self.snapshot.set_totals(desired, actual);
    }

    /// Returns the page that Prometheus reads.
    pub(crate) fn page(&self) -> Page {
        page(&self.registry)
    }
}

/// Answers `GET /metrics` and `GET /healthz` until the process ends.
pub(crate) async fn serve(listener: Listener, metrics: Arc<Metrics>) {
    http::serve("metrics", listener, MetricsPages(metrics)).await;
}

struct MetricsPages(Arc<Metrics>);

impl Pages for MetricsPages {
    async fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(self.0.page()),
            // A process that answers is healthy.
            "/healthz" => Some(Page {
                content_type: "text/plain; charset=utf-8",
                body: "ok".to_owned(),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
