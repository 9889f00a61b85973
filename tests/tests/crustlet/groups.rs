//! KEP-2317: fsGroup is the driver's to apply where it can; and KEP-2857's: the runtime's.

use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use runcrust_tests::manifests::{CsiDriver, Pod};
use runcrust_tests::on_each_delegate;
use tonic::Status;

use crate::scene::{Scene, groups, pod_with};

/// A driver of before KEP-2317.
const OLDER: [&str; 2] = ["--without", "VOLUME_MOUNT_GROUP"];

/// The one publication since the last look.
#[track_caller]
fn publication(scene: &Scene) -> NodePublishVolumeRequest {
    let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
    let [request] = &published[..] else {
        panic!("{published:?}");
    };
    scene.relay.clear_requests();
    request.clone()
}

/// A pod with a fsGroup and a claim's volume.
fn grouped(name: &str, claim: &str, is_deferred: bool) -> Pod {
    pod_with(name, claim, is_deferred).fs_group(2317)
}

on_each_delegate! {
    fn the_gid_arrives_by_whichever_way_the_driver_knows(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments) in [("new", &[][..]), ("old", &OLDER)] {
            scene.csi.restart(arguments);
            for is_deferred in [false, true] {
                let name = format!("{driver}-{is_deferred}");
                all.push(scene.claim(&name, "ext4"));
                let pod = grouped(&name, &name, is_deferred);
                scene.relay.clear_requests();
                scene.run(&pod);
                let told = |is_told: bool| if is_told { "2317" } else { "" };
                let expected = [told(driver == "new"), told(is_deferred), ""];
                let staged: Vec<NodeStageVolumeRequest> = scene.relay.requests();
                let staged: Vec<_> = staged.iter().map(|it| groups(it.volume_capability.as_ref())).collect();
                assert_eq!(staged, [[expected[0], "", ""]], "{name}");
                let published = publication(&scene);
                assert_eq!(groups(published.volume_capability.as_ref()), expected, "{name}");
                let script = "touch /data/file; stat -c '%g %a' /data; stat -c %g /data/file";
                assert_eq!(scene.sh(&pod, script), "2317 2775\n2317", "{name}");
                scene.end(&pod);
            }
        }
        scene.assert_nothing_left(&all.iter().collect::<Vec<_>>());
    }

    /// `fsGroupPolicy` decides of ordinary mounts, and is ignored where the driver applies the group itself.
    fn the_csi_drivers_fs_group_policy_is_respected(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments) in [("new", &[][..]), ("old", &OLDER)] {
            scene.csi.restart(arguments);
            for policy in ["None", "File", "ReadWriteOnceWithFSType"] {
                let name = format!("{driver}-{}", policy.to_lowercase());
                scene.apply("driver", &[&CsiDriver::with(policy)]);
                scene.crustlet.wait("the policy to be known", || {
                    let drivers = scene.crustlet.all("csidrivers");
                    drivers.iter().any(|it| it["spec"]["fsGroupPolicy"] == policy)
                });
                all.push(scene.claim(&name, "ext4"));
                let pod = grouped(&name, &name, false);
                scene.run(&pod);
                let is_applied = driver == "new" || policy != "None";
                let expected = if is_applied { "2317" } else { "0" };
                assert_eq!(scene.sh(&pod, "stat -c %g /data"), expected, "{name}");
                scene.end(&pod);
            }
        }
        scene.assert_nothing_left(&all.iter().collect::<Vec<_>>());
    }

    /// KEP-2317, "What are other known failure modes?".
    fn a_drivers_group_failure_is_reported_and_retried(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data", "ext4");
        let pod = grouped("web", "data", false);
        scene.relay.refuse::<NodePublishVolumeRequest>(Status::internal("can't apply fsGroup 2317"));
        scene.apply_pod(&pod);
        scene.crustlet.wait_event_containing("pod/web", "FailedMount", "can't apply fsGroup 2317");
        let metrics = scene.crustlet.metrics();
        let failed = [("operation_name", "volume_mount"), ("status", "fail-unknown")];
        assert!(metrics.count("storage_operation_duration_seconds_count", &failed) >= 1.0);
        let called = [("method_name", "/csi.v1.Node/NodePublishVolume"), ("grpc_status_code", "Internal")];
        assert!(metrics.count("csi_operations_seconds_count", &called) >= 1.0);
        assert_eq!(scene.sandboxes(&pod), Vec::<String>::new());
        let asked: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert!(asked.iter().all(|it| groups(it.volume_capability.as_ref())[0] == "2317"), "{asked:?}");

        scene.relay.clear_faults();
        scene.crustlet.wait_pod("web", "Running");
        assert_eq!(scene.sh(&pod, "stat -c '%g %a' /data"), "2317 2775");
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }

    /// KEP-2857, "Enhancements to Kubelet": its first.
    fn a_group_that_the_driver_cannot_hand_on_fails_the_mount(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data", "ext4");
        let group = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP";
        let policy = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY";
        let always = |name: &str| grouped(name, "data", true).change_policy("Always");
        for (lacks, pod) in [(group, grouped("group", "data", true)), (policy, always("policy"))] {
            scene.csi.restart(&["--without", lacks]);
            scene.relay.clear_requests();
            scene.apply_pod(&pod);
            let told = format!("lacks the capability {lacks},");
            scene.crustlet.wait_event_containing(&format!("pod/{}", pod.name()), "FailedMount", &told);
            assert_eq!(scene.relay.requests::<NodePublishVolumeRequest>(), []);
            scene.end(&pod);
        }
        // Who says nothing of a policy needs none.
        let pod = grouped("default", "data", true);
        scene.run(&pod);
        assert_eq!(scene.sh(&pod, "stat -c '%g %a' /data"), "2317 2775");
        scene.end(&pod);
        // And a pod without a group no group.
        scene.csi.restart(&["--without", group]);
        let pod = pod_with("ungrouped", "data", true);
        scene.run(&pod);
        scene.assert_deferred(&pod, &storage);
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }
}
