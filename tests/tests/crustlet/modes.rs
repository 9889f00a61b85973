//! KEP-2485: a volume for one pod, and what drivers are told of access modes.

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};
use runcrust_tests::csi::filesystem;
use runcrust_tests::manifests::Volume;
use runcrust_tests::on_each_delegate;

use crate::scene::{Scene, pod_with};

/// A driver of before KEP-2485.
const OLDER: [&str; 2] = ["--without", "SINGLE_NODE_MULTI_WRITER"];

const IN_USE: &str =
    "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

fn mode_of(capability: Option<&VolumeCapability>) -> Mode {
    let mode = capability.and_then(|it| it.access_mode.as_ref());
    mode.expect("it is REQUIRED").mode()
}

on_each_delegate! {
    fn a_second_pod_waits_until_the_first_is_gone(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (claim, is_deferred) in [("deferred", true), ("plain", false)] {
            let one_pod = |volume: Volume| volume.mode("ReadWriteOncePod");
            let storage = scene.claim_of(claim, filesystem("ext4"), one_pod);
            let first = pod_with(&format!("first-{claim}"), claim, is_deferred);
            let second = pod_with(&format!("second-{claim}"), claim, is_deferred);
            scene.run(&first);
            scene.relay.clear_requests();
            scene.apply_pod(&second);
            let told = scene.crustlet.wait_event_containing(&format!("pod/{}", second.name()), "FailedMount", IN_USE);
            assert!(told.contains(first.name()), "{told}");
            assert_eq!(scene.crustlet.pod(second.name())["status"]["phase"], "Pending");
            assert_eq!(scene.sandboxes(&second), Vec::<String>::new());
            assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "the driver isn't asked");
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

    /// KEP-2485, "CSI Specification Changes, Volume Capabilities": its table.
    fn drivers_are_told_access_modes_by_the_names_that_they_know(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments, expected) in [
            ("new", &[][..], [Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter]),
            ("old", &OLDER, [Mode::SingleNodeWriter, Mode::SingleNodeWriter]),
        ] {
            scene.csi.restart(arguments);
            for (written, expected) in ["ReadWriteOncePod", "ReadWriteOnce"].into_iter().zip(expected) {
                for is_deferred in [true, false] {
                    let name = format!("{driver}-{}-{is_deferred}", written.to_lowercase());
                    let storage = scene.claim_of(&name, filesystem("ext4"), |volume| volume.mode(written));
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

    /// crust-csi is on one node, and refuses those of several.
    fn the_modes_of_several_nodes_have_one_name_each(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mut all = Vec::new();
        for (driver, arguments) in [("new", &[][..]), ("old", &OLDER)] {
            scene.csi.restart(arguments);
            for (written, expected) in [
                ("ReadWriteMany", Mode::MultiNodeMultiWriter),
                ("ReadOnlyMany", Mode::MultiNodeReaderOnly),
            ] {
                let name = format!("{driver}-{}", written.to_lowercase());
                let storage = scene.claim_of(&name, filesystem("ext4"), |volume| volume.mode(written));
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

    /// KEP-2485, "Version Skew Strategy": the driver's name for it changes under a pod.
    fn a_driver_is_upgraded_under_a_pod_and_told_the_newer_name(delegate: Delegate) {
        let scene = Scene::new(delegate);
        scene.csi.restart(&OLDER);
        let storage = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", true);
        scene.run(&pod);
        let container = scene.container(&pod);
        scene.csi.restart(&[]);
        scene.relay.clear_requests();
        // After its own restart it publishes again what its pods want.
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
