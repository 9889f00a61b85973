//! A volume's health, by whichever call of CSI's the driver has for it.

use std::fs;

use crust_proto::csi::v1::NodeGetVolumeHealthRequest;
use runcrust_tests::{Delegate, Setup};
use tonic::Status;

use crate::scene::{Scene, pod_with};

const ABNORMAL: &str = "kubelet_volume_stats_health_status_abnormal";
const USED: &str = "kubelet_volume_stats_used_bytes";

/// CSI 1.13 has no `volume_condition` any more.
#[test]
fn a_driver_of_csi_1_13_is_asked_for_a_volumes_health() {
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
    // A pod under another handler has written to the node's disk.
    let stray = scene.target(&pod, &data.pv).join("stray");
    fs::write(&stray, "data").expect("a file");
    scene.crustlet.wait("the problem to be told of", || {
        scene.stat(&data, ABNORMAL) == Some(1)
    });
    // The usage is told while the health isn't known.
    scene
        .relay
        .refuse::<NodeGetVolumeHealthRequest>(Status::internal("it can't be asked"));
    scene.crustlet.wait("the health to be unknown", || {
        scene.stat(&data, USED).is_some() && scene.stat(&data, ABNORMAL).is_none()
    });
    scene.relay.clear_faults();
    scene.crustlet.wait("the problem to be told of again", || {
        scene.stat(&data, ABNORMAL) == Some(1)
    });
    let events = scene.crustlet.events().into_iter();
    let told = events.filter(|event| event.reason == "VolumeConditionAbnormal");
    assert_eq!(told.map(|event| event.count).sum::<u64>(), 1);
    fs::remove_file(&stray).expect("it is there");
    scene.end(&pod);
    scene.assert_nothing_left(&[&data]);
}
