//! crustlet's metrics, and the pages that Prometheus and probes read: kubelet's names, labels and buckets where kubelet
//! has them, and those that the KEPs add.

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

use labels::{CsiCall, NOT_MIGRATED, StorageOperation, plugin};
use snapshot::Snapshot;

pub(crate) use labels::Operation;
pub(crate) use snapshot::VolumeStats;

/// kubelet's buckets of both histograms, in seconds.
const BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// All metrics of crustlet.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    csi_calls: Family<CsiCall, Histogram, fn() -> Histogram>,
    operations: Family<StorageOperation, Histogram, fn() -> Histogram>,
    deferred: Counter,
    reconstructions: Attempts,
    force_cleanups: Attempts,
    orphans: Gauge,
    snapshot: Arc<Snapshot>,
}

/// Attempts, and how many of them have failed.
#[derive(Debug)]
struct Attempts {
    all: Counter,
    failed: Counter,
}

impl Attempts {
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
        let mut all = Registry::default();
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let csi_calls = Family::new_with_constructor(histogram);
        all.register(
            "csi_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
            csi_calls.clone(),
        );
        let operations = Family::new_with_constructor(histogram);
        all.register(
            "storage_operation_duration_seconds",
            "Storage operation duration",
            operations.clone(),
        );
        // KEP-2857, "Enhancements to Kubelet".
        let deferred = registered(
            &mut all,
            "volumes_published_with_deferred_ops",
            "NodePublishVolume with defer_fs_ops that returned successfully",
        );
        // KEP-3756, "Observability".
        let reconstructions = Attempts {
            all: registered(
                &mut all,
                "reconstruct_volume_operations",
                "Volumes that were attempted to be reconstructed from the operating system at the start",
            ),
            failed: registered(
                &mut all,
                "reconstruct_volume_operations_errors",
                "Volumes that failed reconstruction from the operating system at the start",
            ),
        };
        let force_cleanups = Attempts {
            all: registered(
                &mut all,
                "force_cleaned_failed_volume_operations",
                "Volumes that were force cleaned after their reconstruction failed at the start",
            ),
            failed: registered(
                &mut all,
                "force_cleaned_failed_volume_operation_errors",
                "Volumes that failed force cleanup after their reconstruction failed at the start",
            ),
        };
        // No counter, for all its name: "nr of errors during the last housekeeping sweep".
        let orphans = registered(
            &mut all,
            "orphaned_volumes_cleanup_errors_total",
            "Errors of the last sweep over the directories of pods that are gone",
        );
        let snapshot: Arc<Snapshot> = Arc::default();
        all.register_collector(Box::new(Arc::clone(&snapshot)));
        Self {
            registry: all,
            csi_calls,
            operations,
            deferred,
            reconstructions,
            force_cleanups,
            orphans,
            snapshot,
        }
    }

    /// Counts a call of a driver.
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
            grpc_status_code: go_code(code),
            migrated: NOT_MIGRATED,
        };
        let seconds = elapsed.as_secs_f64();
        self.csi_calls.get_or_create(&call).observe(seconds);
    }

    /// Counts an operation on a driver's volume, from its start to its end.
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

    /// Counts a volume that was published with `defer_fs_ops`.
    pub(crate) fn published_deferred(&self) {
        self.deferred.inc();
    }

    /// Counts a volume that was reconstructed from the disk, or couldn't be.
    pub(crate) fn reconstructed(&self, is_ok: bool) {
        self.reconstructions.count(is_ok);
    }

    /// Counts a volume that couldn't be reconstructed, and was cleaned up by force, or couldn't be.
    pub(crate) fn force_cleaned(&self, is_ok: bool) {
        self.force_cleanups.count(is_ok);
    }

    /// Notes how many directories of pods that are gone the last sweep couldn't clean up.
    pub(crate) fn orphans_swept(&self, errors: usize) {
        self.orphans.set(i64::try_from(errors).unwrap_or(i64::MAX));
    }

    /// Replaces what is known of the volumes.
    pub(crate) fn set_volume_stats(&self, stats: Vec<VolumeStats>) {
        self.snapshot.set_stats(stats);
    }

    /// Replaces the numbers of volumes, which are given by the driver of each.
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
            // A process that answers here is healthy.
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
