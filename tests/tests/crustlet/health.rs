//! A volume's health, with CSI 1.13's call.

use std::fs;

use crust_proto::csi::v1::NodeGetVolumeHealthRequest;
use runcrust_tests::{Delegate, Setup};
use tonic::Status;

use crate::scene::{Scene, pod_with};

const ABNORMAL: &str = "kubelet_volume_stats_health_status_abnormal";
const USED: &str = "kubelet_volume_stats_used_bytes";

/// CSI 1.13 has removed `volume_condition`.
#[test]
fn health_is_read_with_the_call_of_csi_1_13() {
    let setup = Setup {
        driver: &["--without", "VOLUME_CONDITION"],
        ..Setup::default()
    };
    let scene = Scene::with(Delegate::Runc, &setup);
    let data = scene.claim("data", "ext4");
    let pod = pod_with("web", "data", true);
    scene.run(&pod);
    scene.wait_stats(&data, &pod, "/data");
    let asked: Vec<NodeGetVolumeHealthRequest> = scene.relay.requests();
    assert!(!asked.is_empty());
    // A pod with another runtime handler writes its files to the node's disk instead of the volume.
    let stray = scene.target(&pod, &data.pv).join("stray");
    fs::write(&stray, "data").expect("a file");
    scene.crustlet.wait("the problem to be reported", || {
        scene.stat(&data, ABNORMAL) == Some(1)
    });
    // The usage is reported even while the health is unknown.
    scene
        .relay
        .refuse::<NodeGetVolumeHealthRequest>(Status::internal("no health in this test"));
    scene.crustlet.wait("the health to be unknown", || {
        scene.stat(&data, USED).is_some() && scene.stat(&data, ABNORMAL).is_none()
    });
    scene.relay.clear_faults();
    scene.crustlet.wait("the problem to be reported again", || {
        scene.stat(&data, ABNORMAL) == Some(1)
    });
    let events = scene.crustlet.events().into_iter();
    let reported = events.filter(|event| event.reason == "VolumeConditionAbnormal");
    assert_eq!(reported.map(|event| event.count).sum::<u64>(), 1);
    fs::remove_file(&stray).expect("the stray file");
    scene.end(&pod);
    scene.assert_nothing_left(&[&data]);
}
