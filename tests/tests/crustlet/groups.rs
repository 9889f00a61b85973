//! The fsGroup of a pod: applied by a driver that can (KEP-2317), or by the runtime for a deferred volume (KEP-2857).

use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use runcrust_tests::manifests::{CsiDriver, Pod};
use runcrust_tests::on_each_delegate;
use tonic::Status;

use crate::scene::{Scene, groups, pod_with};

/// Arguments for a driver from before KEP-2317.
const WITHOUT_MOUNT_GROUP: [&str; 2] = ["--without", "VOLUME_MOUNT_GROUP"];

/// Returns the only publish request since the last call of this function.
#[track_caller]
fn take_publication(scene: &Scene) -> NodePublishVolumeRequest {
    let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
    let [request] = &published[..] else {
        panic!("{published:?}");
    };
    scene.relay.clear_requests();
    request.clone()
}

/// A pod with a fsGroup and the volume of a claim.
fn pod_with_group(name: &str, claim: &str, is_deferred: bool) -> Pod {
    pod_with(name, claim, is_deferred).fs_group(2317)
}

on_each_delegate! {
    fn the_gid_arrives_with_each_capability(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments) in [("new", &[][..]), ("old", &WITHOUT_MOUNT_GROUP)] {
            scene.csi.restart(arguments);
            for is_deferred in [false, true] {
                let name = format!("{driver}-{is_deferred}");
                all.push(scene.claim(&name, "ext4"));
                let pod = pod_with_group(&name, &name, is_deferred);
                scene.relay.clear_requests();
                scene.run(&pod);
                let gid_if = |is_sent: bool| if is_sent { "2317" } else { "" };
                let expected = [gid_if(driver == "new"), gid_if(is_deferred), ""];
                let staged: Vec<NodeStageVolumeRequest> = scene.relay.requests();
                let staged: Vec<_> = staged.iter().map(|it| groups(it.volume_capability.as_ref())).collect();
                assert_eq!(staged, [[expected[0], "", ""]], "{name}");
                let published = take_publication(&scene);
                assert_eq!(groups(published.volume_capability.as_ref()), expected, "{name}");
                let script = "touch /data/file; stat -c '%g %a' /data; stat -c %g /data/file";
                assert_eq!(scene.sh(&pod, script), "2317 2775\n2317", "{name}");
                scene.end(&pod);
            }
        }
        scene.assert_nothing_left(&all.iter().collect::<Vec<_>>());
    }

    /// `fsGroupPolicy` applies to ordinary mounts, and is ignored if the driver applies the group itself.
    fn the_csi_drivers_fs_group_policy_is_respected(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments) in [("new", &[][..]), ("old", &WITHOUT_MOUNT_GROUP)] {
            scene.csi.restart(arguments);
            for policy in ["None", "File", "ReadWriteOnceWithFSType"] {
                let name = format!("{driver}-{}", policy.to_lowercase());
                scene.apply("driver", &[&CsiDriver::with(policy)]);
                scene.crustlet.wait("the policy to be known", || {
                    let drivers = scene.crustlet.all("csidrivers");
                    drivers.iter().any(|it| it["spec"]["fsGroupPolicy"] == policy)
                });
                all.push(scene.claim(&name, "ext4"));
                let pod = pod_with_group(&name, &name, false);
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
        let pod = pod_with_group("web", "data", false);
        scene.relay.refuse::<NodePublishVolumeRequest>(Status::internal("can't apply fsGroup 2317"));
        scene.apply_pod(&pod);
        scene.crustlet.wait_event_containing("pod/web", "FailedMount", "can't apply fsGroup 2317");
        let metrics = scene.crustlet.metrics();
        let failed = [("operation_name", "volume_mount"), ("status", "fail-unknown")];
        assert!(metrics.count("storage_operation_duration_seconds_count", &failed) >= 1.0);
        let called = [("method_name", "/csi.v1.Node/NodePublishVolume"), ("grpc_status_code", "Internal")];
        assert!(metrics.count("csi_operations_seconds_count", &called) >= 1.0);
        assert_eq!(scene.sandboxes(&pod), Vec::<String>::new());
        let requests: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert!(requests.iter().all(|it| groups(it.volume_capability.as_ref())[0] == "2317"), "{requests:?}");

        scene.relay.clear_faults();
        scene.crustlet.wait_pod("web", "Running");
        assert_eq!(scene.sh(&pod, "stat -c '%g %a' /data"), "2317 2775");
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }

    /// KEP-2857, "Enhancements to Kubelet", the first enhancement.
    fn a_group_that_the_driver_cannot_pass_on_fails_the_mount(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data", "ext4");
        let group = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP";
        let policy = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY";
        let always = |name: &str| pod_with_group(name, "data", true).change_policy("Always");
        for (missing, pod) in [(group, pod_with_group("group", "data", true)), (policy, always("policy"))] {
            scene.csi.restart(&["--without", missing]);
            scene.relay.clear_requests();
            scene.apply_pod(&pod);
            let message = format!("lacks the capability {missing},");
            scene.crustlet.wait_event_containing(&format!("pod/{}", pod.name()), "FailedMount", &message);
            assert_eq!(scene.relay.requests::<NodePublishVolumeRequest>(), []);
            scene.end(&pod);
        }
        // A pod without a change policy does not need the capability for it.
        let pod = pod_with_group("default", "data", true);
        scene.run(&pod);
        assert_eq!(scene.sh(&pod, "stat -c '%g %a' /data"), "2317 2775");
        scene.end(&pod);
        // A pod without a group does not need the capability for groups.
        scene.csi.restart(&["--without", group]);
        let pod = pod_with("ungrouped", "data", true);
        scene.run(&pod);
        scene.assert_deferred(&pod, &storage);
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }
}
