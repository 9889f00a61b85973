//! The agent's counters since its last start, compared with the requests that the driver received.

#![expect(clippy::float_cmp, reason = "whole numbers, and small ones")]

use crust_proto::csi::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use runcrust_tests::crustlet::Metrics;
use runcrust_tests::csi::CsiRequest;
use runcrust_tests::{process, wait_until};

use super::node::{AgentNode, TIMEOUT};
use super::pair_sequence::PairSequence;
use crate::leftovers::collect_paths_below;

impl AgentNode {
    /// Lets two pairs of pods run undisturbed, except that the agent is restarted when the first pod of each pair runs,
    /// and checks the counters.
    ///
    /// # Panics
    ///
    /// If a counter doesn't match.
    pub(super) fn check_counters(&self, one: &mut PairSequence<'_>, other: &mut PairSequence<'_>) {
        let pairs = [one.start_first(), other.start_first()];
        let testbed = &self.testbed;
        self.wait_quiet();
        let records = self.record_count();
        testbed.crustlet.kill();
        testbed.relay.clear_requests();
        self.start_agent();
        self.wait_quiet();
        let descriptors = process::descriptors(testbed.crustlet.pid());
        let [first_pair, second_pair] = pairs;
        one.finish(first_pair);
        other.finish(second_pair);
        wait_until("all volumes to be deleted", TIMEOUT, || {
            testbed.crustlet.all("volumes").is_empty()
                && testbed.crustlet.all("pv").is_empty()
                && testbed.csi.leftovers().is_empty()
        });
        let now = || process::descriptors(testbed.crustlet.pid());
        wait_until("crustlet to close its descriptors", TIMEOUT, || {
            now() <= descriptors
        });
        self.assert_accounts(records);
    }

    /// Waits until all volumes have reached the desired state and no operation is in progress.
    fn wait_quiet(&self) {
        wait_until("all volumes to reach the desired state", TIMEOUT, || {
            let volumes = self.testbed.crustlet.all("volumes");
            let claims = self.testbed.crustlet.all("pvc");
            let mut mounts = volumes
                .iter()
                .filter_map(|it| it["status"]["mounts"].as_array())
                .flatten();
            volumes
                .iter()
                .all(|it| it["status"]["operation"].is_null() && it["status"]["staged"] == "True")
                && mounts.all(|it| it["state"] == "Mounted")
                && claims.iter().all(|it| it["status"]["phase"] == "Bound")
        });
    }

    /// Returns the number of volume records on the disk, from which a new agent reconstructs volumes.
    fn record_count(&self) -> usize {
        let mut files = Vec::new();
        collect_paths_below(self.testbed.crustlet.root(), &mut files);
        files
            .iter()
            .filter(|it| it.ends_with("vol_data.json"))
            .count()
    }

    fn assert_accounts(&self, records: usize) {
        let wait_absent = |name: &str| {
            wait_until(name, TIMEOUT, || {
                self.testbed.crustlet.metrics().value(name, &[]).is_none()
            });
        };
        wait_absent("kubelet_volume_stats_capacity_bytes");
        let metrics = self.testbed.crustlet.metrics();
        let staged = self.calls::<NodeStageVolumeRequest>(&metrics, "Node");
        let published = self.calls::<NodePublishVolumeRequest>(&metrics, "Node");
        let unpublished = self.calls::<NodeUnpublishVolumeRequest>(&metrics, "Node");
        let unstaged = self.calls::<NodeUnstageVolumeRequest>(&metrics, "Node");
        self.calls::<CreateVolumeRequest>(&metrics, "Controller");
        self.calls::<DeleteVolumeRequest>(&metrics, "Controller");
        for (operation, calls) in [
            ("volume_mount", staged + published),
            ("volume_unmount", unpublished),
            ("unmount_device", unstaged),
        ] {
            let labels = [("operation_name", operation), ("status", "success")];
            let count = metrics.count("storage_operation_duration_seconds_count", &labels);
            assert_eq!(count, calls, "{operation}");
        }
        let requests: Vec<NodePublishVolumeRequest> = self.testbed.relay.requests();
        let deferred = requests.iter().filter(|it| it.defer_fs_ops).count();
        for (name, expected) in [
            ("volumes_published_with_deferred_ops_total", deferred),
            ("reconstruct_volume_operations_total", records),
            ("reconstruct_volume_operations_errors_total", 0),
            ("force_cleaned_failed_volume_operations_total", 0),
            ("force_cleaned_failed_volume_operation_errors_total", 0),
            ("orphaned_volumes_cleanup_errors_total", 0),
            ("volume_manager_total_volumes", 0),
        ] {
            assert_eq!(metrics.count(name, &[]), number(expected), "{name}");
        }
    }

    /// Returns the number of successful calls, and asserts that the driver received as many calls as the agent counted.
    #[track_caller]
    fn calls<C: CsiRequest>(&self, metrics: &Metrics, service: &str) -> f64 {
        let method = C::NAME.trim_end_matches("Request");
        let method = format!("/csi.v1.{service}/{method}");
        let name = "csi_operations_seconds_count";
        let label = ("method_name", method.as_str());
        let received = number(self.testbed.relay.requests::<C>().len());
        assert_eq!(metrics.count(name, &[label]), received, "{method}");
        metrics.count(name, &[label, ("grpc_status_code", "OK")])
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a small number"))
}
