//! What is counted, for Prometheus.

mod counting;
mod page;

use std::time::Duration;

use crust_serve::Observer;
use crust_volume::{Finding, Report};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::node::Counts;

pub(crate) use page::{Listener, listen, serve};

/// A call's method and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: &'static str,
    code: &'static str,
}

/// `crust.v1.Runtime/RuntimeStageVolume`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    method: &'static str,
}

/// Why a call wasn't even looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    reason: &'static str,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct How {
    result: &'static str,
}

/// What a reconciliation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    kind: &'static str,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<Call, Counter>,
    seconds: Family<Of, Histogram>,
    refused: Family<Why, Counter>,
    timeouts: Counter,
    reconciliations: Family<How, Counter>,
    removed: Family<What, Counter>,
    left: Family<What, Gauge>,
    staged: Gauge,
    in_use: Gauge,
}

/// Whoever calls can make up names, and each label is kept.
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

/// From a stage on a tmpfs to a publish that applies fsGroup to many files, in seconds; 35 is above
/// the calls that were ended after 30.
const BUCKETS: [f64; 14] = [
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 35.0, 60.0, 120.0,
];

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("crust_ops");
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            refused: Family::default(),
            timeouts: Counter::default(),
            reconciliations: Family::default(),
            removed: Family::default(),
            left: Family::default(),
            staged: Gauge::default(),
            in_use: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register(
            "calls",
            "Calls by method and gRPC code",
            metrics.calls.clone(),
        );
        registry.register_with_unit(
            "call_duration",
            "How long calls took",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register(
            "refused_calls",
            "Calls that weren't looked at, by reason",
            metrics.refused.clone(),
        );
        registry.register(
            "runtime_cli_timeouts",
            "Runs of a runtime-cli that were killed for their time",
            metrics.timeouts.clone(),
        );
        registry.register(
            "reconciliations",
            "Reconciliations by outcome",
            metrics.reconciliations.clone(),
        );
        registry.register(
            "reconciliation_removed",
            "What reconciliations have removed, by kind",
            metrics.removed.clone(),
        );
        registry.register(
            "reconciliation_left",
            "What the last reconciliation wasn't sure of, or couldn't remove, by kind",
            metrics.left.clone(),
        );
        registry.register(
            "staged_volumes",
            "Volumes that are staged",
            metrics.staged.clone(),
        );
        registry.register(
            "volumes_in_use",
            "Staged volumes that a runtime has mounted",
            metrics.in_use.clone(),
        );
        Self {
            registry,
            ..metrics
        }
    }

    pub(crate) fn timeout(&self) {
        self.timeouts.inc();
    }

    /// `None`: it didn't come to its end, and what is left is as it was.
    pub(crate) fn reconciled(&self, report: Option<&Report>) {
        let is_ok = report.is_some_and(|report| report.failed.is_empty());
        let result = if is_ok { "ok" } else { "error" };
        self.reconciliations.get_or_create(&How { result }).inc();
        let Some(report) = report else {
            return;
        };
        let what = |it: &Finding| What {
            kind: it.thing.kind(),
        };
        for finding in &report.removed {
            self.removed.get_or_create(&what(finding)).inc();
        }
        self.left.clear();
        for finding in report.left.iter().chain(&report.failed) {
            self.left.get_or_create(&what(finding)).inc();
        }
    }

    fn text(&self, counts: Option<Counts>) -> String {
        if let Some(counts) = counts {
            self.staged.set(counts.staged.cast_signed());
            self.in_use.set(counts.in_use.cast_signed());
        }
        let mut text = String::new();
        // A String takes everything.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Observer for Metrics {
    fn call(&self, method: &str, code: tonic::Code, took: Duration) {
        let known = METHODS.into_iter().find(|known| *known == method);
        let method = known.unwrap_or("other");
        let code = name(code);
        let call = Call { method, code };
        self.calls.get_or_create(&call).inc();
        self.seconds
            .get_or_create(&Of { method })
            .observe(took.as_secs_f64());
    }

    fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Why { reason }).inc();
    }
}

/// As gRPC spells it.
fn name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_ours_is_known() {
        let api = include_str!("../../proto/api.txt");
        let mut package = "";
        for line in api.lines() {
            if let Some(name) = line.strip_prefix("package ") {
                package = name;
            }
            // Other daemons'.
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
    fn what_was_cleaned_up_and_what_is_left_is_told() {
        use crust_volume::Thing;
        let finding = |path: &str| Finding {
            thing: Thing::Leftover(path.into()),
            why: String::new(),
        };
        let bundle = Finding {
            thing: Thing::Bundle("/b".into()),
            why: String::new(),
        };
        let metrics = Metrics::new();
        let assert_told = |lines: &[&str]| {
            let text = metrics.text(None);
            for line in lines {
                assert!(text.lines().any(|it| it == *line), "{line} isn't in {text}");
            }
        };
        let first = Report {
            removed: vec![finding("/a"), finding("/b")],
            left: vec![bundle],
            failed: vec![finding("/c"), finding("/d")],
        };
        metrics.reconciled(Some(&first));
        assert_told(&[
            "crust_ops_reconciliations_total{result=\"error\"} 1",
            "crust_ops_reconciliation_removed_total{kind=\"leftover\"} 2",
            "crust_ops_reconciliation_left{kind=\"bundle\"} 1",
            "crust_ops_reconciliation_left{kind=\"leftover\"} 2",
        ]);
        metrics.reconciled(Some(&Report {
            removed: vec![finding("/c")],
            ..Report::default()
        }));
        metrics.reconciled(None);
        assert_told(&[
            "crust_ops_reconciliations_total{result=\"error\"} 2",
            "crust_ops_reconciliations_total{result=\"ok\"} 1",
            "crust_ops_reconciliation_removed_total{kind=\"leftover\"} 3",
        ]);
        let text = metrics.text(None);
        assert!(!text.contains("crust_ops_reconciliation_left{"), "{text}");
    }

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::new();
        let method = "crust.v1.Runtime/RuntimeStageVolume";
        metrics.call(method, tonic::Code::Ok, Duration::from_micros(200));
        metrics.call(method, tonic::Code::NotFound, Duration::from_secs(2));
        metrics.call("made/up", tonic::Code::Unimplemented, Duration::ZERO);
        metrics.refused("caller");
        metrics.timeout();
        let text = metrics.text(Some(Counts {
            staged: 3,
            in_use: 1,
        }));
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
