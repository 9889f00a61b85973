//! KEP-2485: volumes for a single pod, and the access modes that drivers receive.

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};
use runcrust_tests::csi::filesystem;
use runcrust_tests::manifests::Volume;
use runcrust_tests::on_each_delegate;

use crate::scene::{Scene, pod_with};

/// Arguments for a driver from before KEP-2485.
const WITHOUT_MULTI_WRITER: [&str; 2] = ["--without", "SINGLE_NODE_MULTI_WRITER"];

const IN_USE: &str =
    "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

fn mode_of(capability: Option<&VolumeCapability>) -> Mode {
    let mode = capability.and_then(|it| it.access_mode.as_ref());
    mode.expect("access_mode is REQUIRED").mode()
}

on_each_delegate! {
    fn a_second_pod_waits_until_the_first_is_gone(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (claim, is_deferred) in [("deferred", true), ("plain", false)] {
            let one_pod = |volume: Volume| volume.mode("ReadWriteOncePod");
            let storage = scene.claim_with_capability(claim, filesystem("ext4"), one_pod);
            let first = pod_with(&format!("first-{claim}"), claim, is_deferred);
            let second = pod_with(&format!("second-{claim}"), claim, is_deferred);
            scene.run(&first);
            scene.relay.clear_requests();
            scene.apply_pod(&second);
            let message = scene.crustlet.wait_event_containing(&format!("pod/{}", second.name()), "FailedMount", IN_USE);
            assert!(message.contains(first.name()), "{message}");
            assert_eq!(scene.crustlet.pod(second.name())["status"]["phase"], "Pending");
            assert_eq!(scene.sandboxes(&second), Vec::<String>::new());
            assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "the driver is not called");
            scene.sh(&first, "echo first > /data/file");

            scene.end(&first);
            scene.crustlet.wait_pod(second.name(), "Running");
            assert_eq!(scene.sh(&second, "cat /data/file"), "first");
            if is_deferred {
                scene.assert_deferred(&second, &storage);
            } else {
                scene.assert_plain(&second, &storage);
            }
            scene.end(&second);
            scene.assert_nothing_left(&[&storage]);
        }
    }

    fn two_pods_share_a_read_write_once_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data", "ext4");
        let (one, two) = (pod_with("one", "data", true), pod_with("two", "data", true));
        scene.run(&one);
        scene.run(&two);
        scene.sh(&one, "echo one > /data/file");
        assert_eq!(scene.sh(&two, "cat /data/file"), "one");
        scene.assert_deferred(&one, &storage);
        scene.assert_deferred(&two, &storage);
        scene.end(&one);
        assert_eq!(scene.sh(&two, "cat /data/file"), "one");
        scene.end(&two);
        scene.assert_nothing_left(&[&storage]);
    }

    /// KEP-2485, the table in "CSI Specification Changes, Volume Capabilities".
    fn drivers_receive_the_access_modes_that_they_know(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments, expected) in [
            ("new", &[][..], [Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter]),
            ("old", &WITHOUT_MULTI_WRITER, [Mode::SingleNodeWriter, Mode::SingleNodeWriter]),
        ] {
            scene.csi.restart(arguments);
            for (written, expected) in ["ReadWriteOncePod", "ReadWriteOnce"].into_iter().zip(expected) {
                for is_deferred in [true, false] {
                    let name = format!("{driver}-{}-{is_deferred}", written.to_lowercase());
                    let storage = scene.claim_with_capability(&name, filesystem("ext4"), |volume| volume.mode(written));
                    let pod = pod_with(&name, &name, is_deferred);
                    scene.relay.clear_requests();
                    scene.run(&pod);
                    let staged: Vec<NodeStageVolumeRequest> = scene.relay.requests();
                    let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
                    let staged = staged.iter().map(|it| it.volume_capability.as_ref());
                    let published = published.iter().map(|it| it.volume_capability.as_ref());
                    let modes: Vec<Mode> = staged.chain(published).map(mode_of).collect();
                    assert_eq!(modes, [expected, expected], "{name}");
                    if is_deferred {
                        let info = scene.mount_info(&pod, &storage.pv).unwrap();
                        assert_eq!(info["metadata"]["accessMode"], expected.as_str_name(), "{name}");
                    }
                    scene.end(&pod);
                    all.push(storage);
                }
            }
        }
        scene.assert_nothing_left(&all.iter().collect::<Vec<_>>());
    }

    /// crust-csi works on one node, and refuses the modes of several nodes.
    fn modes_of_several_nodes_are_the_same_for_all_drivers(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments) in [("new", &[][..]), ("old", &WITHOUT_MULTI_WRITER)] {
            scene.csi.restart(arguments);
            for (written, expected) in [
                ("ReadWriteMany", Mode::MultiNodeMultiWriter),
                ("ReadOnlyMany", Mode::MultiNodeReaderOnly),
            ] {
                let name = format!("{driver}-{}", written.to_lowercase());
                let storage = scene.claim_with_capability(&name, filesystem("ext4"), |volume| volume.mode(written));
                let pod = pod_with(&name, &name, false);
                scene.relay.clear_requests();
                scene.apply_pod(&pod);
                scene.crustlet.wait_event(&format!("pod/{name}"), "FailedMount");
                let staged: Vec<NodeStageVolumeRequest> = scene.relay.requests();
                let mut modes = staged.iter().map(|it| mode_of(it.volume_capability.as_ref()));
                assert_eq!(modes.next(), Some(expected), "{name}");
                scene.end(&pod);
                all.push(storage);
            }
        }
        scene.assert_nothing_left(&all.iter().collect::<Vec<_>>());
    }

    /// KEP-2485, "Version Skew Strategy": the driver is upgraded while a pod runs.
    fn an_upgraded_driver_receives_the_newer_mode(delegate: Delegate) {
        let scene = Scene::new(delegate);
        scene.csi.restart(&WITHOUT_MULTI_WRITER);
        let storage = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", true);
        scene.run(&pod);
        let container = scene.container(&pod);
        scene.csi.restart(&[]);
        scene.relay.clear_requests();
        // A restarted agent publishes the volumes of its pods again.
        scene.crustlet.restart(&[]);
        scene.crustlet.wait("the volume to be published again", || {
            let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
            let mut modes = published.iter().map(|it| mode_of(it.volume_capability.as_ref()));
            modes.next_back() == Some(Mode::SingleNodeMultiWriter)
        });
        let other = pod_with("other", "data", true);
        scene.run(&other);
        scene.sh(&pod, "echo shared > /data/file");
        assert_eq!(scene.sh(&other, "cat /data/file"), "shared");
        assert_eq!(scene.container(&pod), container);
        scene.end(&pod);
        scene.end(&other);
        scene.assert_nothing_left(&[&storage]);
    }
}
