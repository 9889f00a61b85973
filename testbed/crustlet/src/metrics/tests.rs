use super::*;
use crate::objects::Name;
use crate::volumes::stats::{SpaceUsage, Stats, VolumeCondition};

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|found| found == *line),
            "{line} isn't in {text}"
        );
    }
}

#[test]
fn names_labels_and_buckets_are_those_of_kubelet() {
    let metrics = Metrics::new();
    let method = "/csi.v1.Node/NodeStageVolume";
    metrics.csi_call("d", method, Code::Ok, Duration::from_millis(200));
    metrics.csi_call("d", method, Code::Cancelled, Duration::from_secs(700));
    let second = Duration::from_secs(1);
    metrics.operation("d", StorageOperation::Mount, true, second);
    metrics.operation("d", StorageOperation::UnmountDevice, false, second);
    let call = |code: &str| {
        format!(
            "driver_name=\"d\",method_name=\"{method}\",grpc_status_code=\"{code}\",migrated=\"false\"}}"
        )
    };
    let operation = |name: &str, status: &str| {
        format!(
            "volume_plugin=\"kubernetes.io/csi:d\",operation_name=\"{name}\",status=\"{status}\",migrated=\"false\"}}"
        )
    };
    let (ok, cancelled) = (call("OK"), call("Canceled"));
    let (mount, unmount) = (
        operation("volume_mount", "success"),
        operation("unmount_device", "fail-unknown"),
    );
    assert_lines(
        &metrics.page().body,
        &[
            "# TYPE csi_operations_seconds histogram",
            &format!("csi_operations_seconds_count{{{ok} 1"),
            &format!("csi_operations_seconds_bucket{{le=\"0.1\",{ok} 0"),
            &format!("csi_operations_seconds_bucket{{le=\"0.25\",{ok} 1"),
            &format!("csi_operations_seconds_bucket{{le=\"600.0\",{cancelled} 0"),
            &format!("csi_operations_seconds_bucket{{le=\"+Inf\",{cancelled} 1"),
            "# TYPE storage_operation_duration_seconds histogram",
            &format!("storage_operation_duration_seconds_sum{{{mount} 1.0"),
            &format!("storage_operation_duration_seconds_count{{{unmount} 1"),
        ],
    );
}

#[test]
fn names_are_those_of_the_keps() {
    let metrics = Metrics::new();
    metrics.count_deferred_publish();
    metrics.reconstructed(true);
    metrics.reconstructed(false);
    metrics.count_force_cleanup(true);
    metrics.set_orphan_errors(3);
    metrics.set_orphan_errors(2);
    assert_lines(
        &metrics.page().body,
        &[
            "volumes_published_with_deferred_ops_total 1",
            "reconstruct_volume_operations_total 2",
            "reconstruct_volume_operations_errors_total 1",
            "force_cleaned_failed_volume_operations_total 1",
            "force_cleaned_failed_volume_operation_errors_total 0",
            "orphaned_volumes_cleanup_errors_total 2",
            "# EOF",
        ],
    );
}

fn volume_stats(claim: &str, used: i64, abnormal: Option<bool>) -> VolumeStats {
    VolumeStats {
        pod: "uid-1".to_owned(),
        claim: Name::new("default", claim),
        stats: Stats {
            bytes: Some(SpaceUsage {
                total: 100,
                available: 100 - used,
                used,
            }),
            inodes: None,
            condition: abnormal.map(|abnormal| VolumeCondition {
                abnormal,
                message: String::new(),
            }),
        },
    }
}

#[test]
fn volume_metrics_are_exported_once_while_the_volume_exists() {
    let metrics = Metrics::new();
    metrics.set_volume_stats(vec![
        volume_stats("a", 40, Some(false)),
        volume_stats("b", 50, None),
        volume_stats("a", 40, Some(true)),
    ]);
    let text = metrics.page().body;
    let labels =
        |claim: &str| format!("{{namespace=\"default\",persistentvolumeclaim=\"{claim}\"}}");
    let (a, b) = (labels("a"), labels("b"));
    assert_lines(
        &text,
        &[
            &format!("kubelet_volume_stats_capacity_bytes{a} 100"),
            &format!("kubelet_volume_stats_available_bytes{a} 60"),
            &format!("kubelet_volume_stats_used_bytes{a} 40"),
            &format!("kubelet_volume_stats_used_bytes{b} 50"),
            &format!("kubelet_volume_stats_health_status_abnormal{a} 1"),
            &format!("volume_stats_health_status_abnormal{a} 1"),
        ],
    );
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(count(&a), 5, "each metric is exported once: {text}");
    assert_eq!(count(&b), 3, "no inodes and no condition: {text}");
    // Two pods use the claim, and only one of them has a known condition.
    metrics.set_volume_stats(vec![
        volume_stats("a", 40, None),
        volume_stats("a", 40, Some(false)),
    ]);
    let healthy = format!("kubelet_volume_stats_health_status_abnormal{a} 0");
    assert_lines(&metrics.page().body, &[&healthy]);
    metrics.set_volume_stats(vec![volume_stats("b", 51, None)]);
    let text = metrics.page().body;
    assert!(!text.contains(&a), "{text}");
    assert_lines(&text, &[&format!("kubelet_volume_stats_used_bytes{b} 51")]);
}

#[test]
fn inode_metrics_have_the_names_of_kubelet() {
    let metrics = Metrics::new();
    let mut measured = volume_stats("a", 0, None);
    measured.stats.inodes = Some(SpaceUsage {
        total: 10,
        available: 7,
        used: 3,
    });
    metrics.set_volume_stats(vec![measured]);
    let a = "{namespace=\"default\",persistentvolumeclaim=\"a\"}";
    assert_lines(
        &metrics.page().body,
        &[
            &format!("kubelet_volume_stats_inodes{a} 10"),
            &format!("kubelet_volume_stats_inodes_free{a} 7"),
            &format!("kubelet_volume_stats_inodes_used{a} 3"),
        ],
    );
}

#[test]
fn volumes_are_counted_by_their_plugin_and_state() {
    let metrics = Metrics::new();
    metrics.set_total_volumes(["d", "d", "e"], ["d"]);
    let series = |driver: &str, state: &str| {
        format!(
            "volume_manager_total_volumes{{plugin_name=\"kubernetes.io/csi:{driver}\",state=\"{state}\"}}"
        )
    };
    let (d, e) = (
        series("d", "desired_state_of_world"),
        series("e", "desired_state_of_world"),
    );
    let actual = series("d", "actual_state_of_world");
    assert_lines(
        &metrics.page().body,
        &[&format!("{d} 2"), &format!("{e} 1"), &format!("{actual} 1")],
    );
    metrics.set_total_volumes([], ["d"]);
    let text = metrics.page().body;
    assert!(!text.contains(&d) && text.contains(&actual), "{text}");
}

#[tokio::test]
async fn health_and_metrics_have_their_pages() {
    use crust_serve::http::Pages as _;
    let pages = MetricsPages(Arc::new(Metrics::new()));
    let body = async |path| pages.page(path).await.map(|page| page.body);
    assert_eq!(body("/healthz").await.as_deref(), Some("ok"));
    let metrics = body("/metrics").await.unwrap();
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(body("/").await, None);
}

#[test]
fn all_metrics_are_documented() {
    let document = include_str!("../../../../docs/crustlet.md");
    let (_, rest) = document.split_once("\n| metric |").expect("a table");
    let (rows, _) = rest.split_once("\n\n").expect("the end of the table");
    let metrics = Metrics::new();
    // Histograms without samples are not exported.
    metrics.csi_call("d", "/a/b", Code::Ok, Duration::ZERO);
    metrics.operation("d", StorageOperation::Mount, true, Duration::ZERO);
    let text = metrics.page().body;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut count = 0;
    for (name, kind) in types.map(|line| line.split_once(' ').expect("a type")) {
        let name = match kind {
            "counter" => format!("`{name}_total`"),
            _ => format!("`{name}`"),
        };
        let row = rows.lines().find(|row| row.contains(&name));
        let row = row.unwrap_or_else(|| panic!("{name} is not documented"));
        assert!(row.contains(&format!("| {kind} |")), "{row}");
        count += 1;
    }
    let documented: usize = rows
        .lines()
        .skip(2)
        .map(|row| row.split('|').nth(1).unwrap_or_default())
        .map(|names| names.matches('`').count() / 2)
        .sum();
    assert_eq!(documented, count);
}
