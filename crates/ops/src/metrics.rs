//! The daemon's metrics, and the page that Prometheus reads.

mod volume_counts;

use std::sync::Arc;
use std::time::Duration;

use crust_serve::http::{Listener, Page, Pages};
use crust_serve::listen::ListenError;
use crust_serve::metrics::{page, registered};
use crust_serve::{CallObserver, proto_code};
use crust_volume::{ItemReport, ReconcileReport};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use crate::DAEMON;
use crate::node::{Counts, StagingNode};
use crate::settings::MetricsAddress;
use volume_counts::VolumeCounts;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    code: &'static str,
}

/// The label of a method, such as `crust.v1.Runtime/RuntimeStageVolume`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

/// The reason why a call was refused before its request was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabel {
    reason: &'static str,
}

/// The result of a reconciliation: `ok` or `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The kind of an item that a reconciliation removed or left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ItemLabel {
    kind: &'static str,
}

/// All metrics of the daemon.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    seconds: Family<MethodLabel, Histogram>,
    refused: Family<RefusalLabel, Counter>,
    timeouts: Counter,
    reconciliations: Family<ResultLabel, Counter>,
    removed: Family<ItemLabel, Counter>,
    left: Family<ItemLabel, Gauge>,
    staged: Gauge,
    in_use: Gauge,
}

/// The methods with a label of their own. All others are counted as `other`, because a caller can use any name and
/// labels are kept until the process ends.
const METHODS: [&str; 13] = [
    "crust.v1.Runtime/RuntimeStageVolume",
    "crust.v1.Runtime/RuntimeUnstageVolume",
    "crust.v1.Runtime/RuntimeGetVolumeStats",
    "crust.v1.Runtime/RuntimeExpandVolume",
    "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement/RuntimeGetCapabilities",
    "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement/RuntimeGetSupportedFileSystems",
    "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement/RuntimePublishVolume",
    "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement/RuntimeGetVolumeStats",
    "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement/RuntimeExpandVolume",
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/List",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// The histogram's buckets in seconds. They range from a stage on a tmpfs to a publish that applies fsGroup to many
/// files. Calls that ended by the timeout of 30 s are in the bucket of 35 s.
const BUCKETS: [f64; 14] = [
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 35.0, 60.0, 120.0,
];

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("crust_ops");
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let seconds = Family::new_with_constructor(histogram);
        let calls = registered(&mut registry, "calls", "Calls by method and gRPC code");
        registry.register_with_unit(
            "call_duration",
            "Duration of calls",
            Unit::Seconds,
            seconds.clone(),
        );
        Self {
            calls,
            seconds,
            refused: registered(
                &mut registry,
                "refused_calls",
                "Calls that were refused before their request was read, by reason",
            ),
            timeouts: registered(
                &mut registry,
                "runtime_cli_timeouts",
                "Runs of a runtime-cli that were killed after their timeout",
            ),
            reconciliations: registered(
                &mut registry,
                "reconciliations",
                "Reconciliations by result",
            ),
            removed: registered(
                &mut registry,
                "reconciliation_removed",
                "Items that reconciliations removed, by kind",
            ),
            left: registered(
                &mut registry,
                "reconciliation_left",
                "Items that the last reconciliation left because they may be in use or couldn't be removed, by kind",
            ),
            staged: registered(&mut registry, "staged_volumes", "Staged volumes"),
            in_use: registered(
                &mut registry,
                "volumes_in_use",
                "Staged volumes that a runtime has mounted",
            ),
            registry,
        }
    }

    /// Counts a runtime-cli that was killed after its timeout.
    pub(crate) fn count_timeout(&self) {
        self.timeouts.inc();
    }

    /// Counts a reconciliation. `None` means that the reconciliation failed. Then the number of items left doesn't
    /// change.
    pub(crate) fn count_reconciliation(&self, report: Option<&ReconcileReport>) {
        let is_ok = report.is_some_and(|report| report.failed.is_empty());
        let result = if is_ok { "ok" } else { "error" };
        self.reconciliations
            .get_or_create(&ResultLabel { result })
            .inc();
        let Some(report) = report else {
            return;
        };
        let label = |it: &ItemReport| ItemLabel {
            kind: it.item.kind(),
        };
        for item in &report.removed {
            self.removed.get_or_create(&label(item)).inc();
        }
        self.left.clear();
        for item in report.left.iter().chain(&report.failed) {
            self.left.get_or_create(&label(item)).inc();
        }
    }

    /// Returns the page `/metrics`. Without `counts`, it has the last known numbers of volumes.
    fn page(&self, counts: Option<Counts>) -> Page {
        if let Some(counts) = counts {
            self.staged.set(counts.staged.cast_signed());
            self.in_use.set(counts.in_use.cast_signed());
        }
        page(&self.registry)
    }
}

/// Listens at the address of the metrics. Requests to a port may also have one of `hosts` in their `Host` header.
pub(crate) async fn listen(
    address: &MetricsAddress,
    hosts: &[String],
) -> Result<Listener, ListenError> {
    match address {
        MetricsAddress::Unix(path) => Listener::unix(&DAEMON, path),
        MetricsAddress::Tcp(address) => Listener::tcp(address, hosts).await,
    }
}

/// Answers `GET /metrics` until the process ends. The volumes are counted for each request.
pub(crate) async fn serve(
    listener: Listener,
    metrics: Arc<Metrics>,
    node: watch::Receiver<StagingNode>,
) {
    let volumes = VolumeCounts::new(move || {
        let node = node.borrow().clone();
        tokio::spawn(async move {
            node.count_volumes()
                .await
                .map_err(|error| error.to_string())
        })
    });
    crust_serve::http::serve("metrics", listener, MetricsPage { metrics, volumes }).await;
}

struct MetricsPage {
    metrics: Arc<Metrics>,
    volumes: VolumeCounts,
}

impl Pages for MetricsPage {
    async fn page(&self, path: &str) -> Option<Page> {
        if path != "/metrics" {
            return None;
        }
        Some(self.metrics.page(self.volumes.latest().await))
    }
}

impl CallObserver for Metrics {
    fn call_ended(&self, method: &str, code: tonic::Code, took: Duration) {
        let known = METHODS.into_iter().find(|known| *known == method);
        let method = known.unwrap_or("other");
        let code = proto_code(code);
        let labels = CallLabels { method, code };
        self.calls.get_or_create(&labels).inc();
        self.seconds
            .get_or_create(&MethodLabel { method })
            .observe(took.as_secs_f64());
    }

    fn call_refused(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabel { reason }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_methods_of_this_daemon_have_a_label() {
        let api = include_str!("../../proto/api.txt");
        let mut package = "";
        for line in api.lines() {
            if let Some(name) = line.strip_prefix("package ") {
                package = name;
            }
            // Services of other daemons.
            if ["csi.", "crustlet."]
                .iter()
                .any(|it| package.starts_with(it))
            {
                continue;
            }
            let Some((service, method)) =
                line.strip_prefix("rpc ").and_then(|it| it.split_once('.'))
            else {
                continue;
            };
            let method = format!("{package}.{service}/{method}");
            assert!(METHODS.contains(&&*method), "{method}");
        }
    }

    #[test]
    fn removed_items_and_items_left_are_counted() {
        use crust_volume::StateItem;
        let leftover = |path: &str| ItemReport {
            item: StateItem::Leftover(path.into()),
            reason: String::new(),
        };
        let bundle = ItemReport {
            item: StateItem::Bundle("/b".into()),
            reason: String::new(),
        };
        let metrics = Metrics::new();
        let assert_lines = |lines: &[&str]| {
            let text = metrics.page(None).body;
            for line in lines {
                assert!(text.lines().any(|it| it == *line), "{line} isn't in {text}");
            }
        };
        let first = ReconcileReport {
            removed: vec![leftover("/a"), leftover("/b")],
            left: vec![bundle],
            failed: vec![leftover("/c"), leftover("/d")],
        };
        metrics.count_reconciliation(Some(&first));
        assert_lines(&[
            "crust_ops_reconciliations_total{result=\"error\"} 1",
            "crust_ops_reconciliation_removed_total{kind=\"leftover\"} 2",
            "crust_ops_reconciliation_left{kind=\"bundle\"} 1",
            "crust_ops_reconciliation_left{kind=\"leftover\"} 2",
        ]);
        metrics.count_reconciliation(Some(&ReconcileReport {
            removed: vec![leftover("/c")],
            ..ReconcileReport::default()
        }));
        metrics.count_reconciliation(None);
        assert_lines(&[
            "crust_ops_reconciliations_total{result=\"error\"} 2",
            "crust_ops_reconciliations_total{result=\"ok\"} 1",
            "crust_ops_reconciliation_removed_total{kind=\"leftover\"} 3",
        ]);
        let text = metrics.page(None).body;
        assert!(!text.contains("crust_ops_reconciliation_left{"), "{text}");
    }

    #[test]
    fn the_page_has_all_counters() {
        let metrics = Metrics::new();
        let method = "crust.v1.Runtime/RuntimeStageVolume";
        metrics.call_ended(method, tonic::Code::Ok, Duration::from_micros(200));
        metrics.call_ended(method, tonic::Code::NotFound, Duration::from_secs(2));
        metrics.call_ended("made/up", tonic::Code::Unimplemented, Duration::ZERO);
        metrics.call_refused("caller");
        metrics.count_timeout();
        let text = metrics.page(Some(Counts {
            staged: 3,
            in_use: 1,
        }));
        let text = text.body;
        for line in [
            &*format!("crust_ops_calls_total{{method=\"{method}\",code=\"OK\"}} 1"),
            &*format!("crust_ops_calls_total{{method=\"{method}\",code=\"NOT_FOUND\"}} 1"),
            &*format!(
                "crust_ops_call_duration_seconds_bucket{{le=\"0.0003\",method=\"{method}\"}} 1"
            ),
            &*format!("crust_ops_call_duration_seconds_count{{method=\"{method}\"}} 2"),
            "crust_ops_calls_total{method=\"other\",code=\"UNIMPLEMENTED\"} 1",
            "crust_ops_refused_calls_total{reason=\"caller\"} 1",
            "crust_ops_runtime_cli_timeouts_total 1",
            "crust_ops_staged_volumes 3",
            "crust_ops_volumes_in_use 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} isn't in {text}");
        }
    }
}
