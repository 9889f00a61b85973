//! A volume's health, by whichever call of CSI's the driver has for it.

use std::fs;

use crust_proto::csi::v1::NodeGetVolumeHealthRequest;
use runcrust_tests::{Delegate, Setup};

use crate::scene::{Scene, pod_with};

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
    let asked: Vec<NodeGetVolumeHealthRequest> = scene.relay.heard();
    assert!(!asked.is_empty());
    // A pod under another handler has written to the node's disk.
    let stray = scene.target(&pod, &data.pv).join("stray");
    fs::write(&stray, "data").expect("a file");
    scene.crustlet.wait("the problem to be told of", || {
        scene.stat(&data, "kubelet_volume_stats_health_status_abnormal") == Some(1)
    });
    fs::remove_file(&stray).expect("it is there");
    scene.end(&pod);
    scene.assert_nothing_left(&[&data]);
}
