//! What the agent has counted since its last start, against what the driver was asked.

#![expect(clippy::float_cmp, reason = "whole numbers, and small ones")]

use crust_proto::csi::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use runcrust_tests::crustlet::Metrics;
use runcrust_tests::csi::CsiRequest;
use runcrust_tests::{process, wait_until};

use super::lane::Lane;
use super::site::{PATIENCE, Site};
use crate::census::below;

impl Site {
    /// Two pairs of pods live retry_lost_race, but that an agent finds the first two of them when it is started.
    ///
    /// # Panics
    ///
    /// When something doesn't add up.
    pub(super) fn accounted(&self, one: &mut Lane<'_>, other: &mut Lane<'_>) {
        let pairs = [one.begun(), other.begun()];
        let bed = &self.bed;
        self.wait_quiet();
        let found = self.records();
        bed.crustlet.kill();
        bed.relay.clear_requests();
        self.start_agent();
        self.wait_quiet();
        let descriptors = process::descriptors(bed.crustlet.pid());
        let [of_one, of_other] = pairs;
        one.finish(of_one);
        other.finish(of_other);
        wait_until("all volumes to be destroyed", PATIENCE, || {
            bed.crustlet.all("volumes").is_empty()
                && bed.crustlet.all("pv").is_empty()
                && bed.csi.leftovers().is_empty()
        });
        let now = || process::descriptors(bed.crustlet.pid());
        wait_until("crustlet to close what it has opened", PATIENCE, || {
            now() <= descriptors
        });
        self.assert_accounts(found);
    }

    /// Nothing is done to any volume, and all of them are as they are wanted.
    fn wait_quiet(&self) {
        wait_until("all volumes to be as they are wanted", PATIENCE, || {
            let volumes = self.bed.crustlet.all("volumes");
            let claims = self.bed.crustlet.all("pvc");
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

    /// So many records are on the disk, by which an agent that is started knows volumes.
    fn records(&self) -> usize {
        let mut files = Vec::new();
        below(self.bed.crustlet.root(), &mut files);
        files
            .iter()
            .filter(|it| it.ends_with("vol_data.json"))
            .count()
    }

    fn assert_accounts(&self, found: usize) {
        let told = |name: &str| {
            wait_until(name, PATIENCE, || {
                self.bed.crustlet.metrics().value(name, &[]).is_none()
            });
        };
        told("kubelet_volume_stats_capacity_bytes");
        let metrics = self.bed.crustlet.metrics();
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
        let requests: Vec<NodePublishVolumeRequest> = self.bed.relay.requests();
        let deferred = requests.iter().filter(|it| it.defer_fs_ops).count();
        for (name, expected) in [
            ("volumes_published_with_deferred_ops_total", deferred),
            ("reconstruct_volume_operations_total", found),
            ("reconstruct_volume_operations_errors_total", 0),
            ("force_cleaned_failed_volume_operations_total", 0),
            ("force_cleaned_failed_volume_operation_errors_total", 0),
            ("orphaned_volumes_cleanup_errors_total", 0),
            ("volume_manager_total_volumes", 0),
        ] {
            assert_eq!(metrics.count(name, &[]), number(expected), "{name}");
        }
    }

    /// So often the driver was called and has done it; it has heard of all that the agent has counted.
    #[track_caller]
    fn calls<C: CsiRequest>(&self, metrics: &Metrics, service: &str) -> f64 {
        let method = C::NAME.trim_end_matches("Request");
        let method = format!("/csi.v1.{service}/{method}");
        let name = "csi_operations_seconds_count";
        let label = ("method_name", method.as_str());
        let heard = number(self.bed.relay.requests::<C>().len());
        assert_eq!(metrics.count(name, &[label]), heard, "{method}");
        metrics.count(name, &[label, ("grpc_status_code", "OK")])
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("it is small"))
}
