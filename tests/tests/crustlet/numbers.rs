//! A driver defers only if it says so by a number that CSI doesn't own (docs/csi-drivers.md), and if it then mounts
//! nothing.

use std::path::PathBuf;

use crust_proto::csi::v1::node_service_capability::Type;
use crust_proto::csi::v1::{
    NodeGetCapabilitiesRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
};
use runcrust_tests::{Delegate, Setup, host};
use tonic::Status;

use crate::scene::{OLDER, Scene, Storage, pod_with};

/// The three capabilities of KEP-2857.
const DEFERRAL: [i32; 3] = [101, 102, 103];

fn older() -> Setup<'static> {
    Setup {
        driver: &OLDER,
        ..Setup::default()
    }
}

/// Who has a volume mounted, by `crustlet get volumes`.
fn mounters(scene: &Scene, storage: &Storage) -> Vec<String> {
    let shown = scene.crustlet.volume(&storage.volume.id);
    let mounts = shown.and_then(|it| it["status"]["mounts"].as_array().cloned());
    let mounters = mounts.unwrap_or_default().into_iter();
    mounters
        .map(|it| it["mounter"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// CSI 1.13 gave 7 and 8, which KEP-2857 has for deferral, to `GET_VOLUME_HEALTH` and `GET_STORAGE_HEALTH`.
#[test]
fn a_driver_that_reports_health_is_not_one_that_defers() {
    let scene = Scene::with(Delegate::Runc, &older());
    let told = scene.csi.call(NodeGetCapabilitiesRequest {});
    let told = told.expect("NodeGetCapabilities").capabilities.into_iter();
    let numbers: Vec<i32> = told
        .filter_map(|it| it.r#type)
        .map(|Type::Rpc(rpc)| rpc.r#type)
        .collect();
    assert!(
        numbers.contains(&7) && numbers.contains(&8) && !numbers.contains(&101),
        "{numbers:?}"
    );
    let data = scene.claim("data", "ext4");
    let pod = pod_with("web", "data", true);
    scene.apply_pod(&pod);
    scene
        .crustlet
        .wait_event_containing("pod/web", "FailedMount", "DEFER_FS_OPS");
    assert_eq!(scene.relay.requests::<NodePublishVolumeRequest>(), []);
    assert_eq!(
        scene.crustlet.pod("web")["status"]["phase"],
        "Pending",
        "{:?}",
        mounters(&scene, &data)
    );
    scene.end(&pod);
    scene.assert_nothing_left(&[&data]);
}

/// One that says that it defers, and ignores the field.
#[test]
fn a_driver_that_mounts_what_it_should_defer_is_unpublished() {
    let scene = Scene::with(Delegate::Runc, &older());
    let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
    let (web, other) = (
        pod_with("web", "data", true),
        pod_with("other", "logs", true),
    );
    scene.relay.claim_capabilities(&DEFERRAL);
    scene.apply_pod(&web);
    let told = scene
        .crustlet
        .wait_event_containing("pod/web", "FailedMount", "on the host");
    assert!(
        told.contains(runcrust_tests::csi::DRIVER) && told.contains("csi.proto"),
        "{told}"
    );
    scene.crustlet.wait("it to be tried again", || {
        scene.relay.requests::<NodePublishVolumeRequest>().len() > 1
    });

    // Its mount can't be taken back: then it is told whose it is.
    let unavailable = Status::unavailable("the test's");
    scene
        .relay
        .refuse::<NodeUnpublishVolumeRequest>(unavailable);
    scene.apply_pod(&other);
    scene
        .crustlet
        .wait_event_containing("pod/other", "FailedMount", "NodeUnpublishVolume failed");
    scene.crustlet.wait("the driver's mount to be told of", || {
        mounters(&scene, &logs) == ["driver"]
    });
    let uid = other.uid();
    let recorded = scene.crustlet.vol_data(&uid, &logs.pv);
    assert_ne!(recorded["deferFSMount"], "true", "{recorded}");

    // From here on it says the truth.
    scene.relay.clear_faults();
    scene
        .crustlet
        .wait_event_containing("pod/other", "FailedMount", "DEFER_FS_OPS");
    for (pod, storage) in [(&web, &data), (&other, &logs)] {
        let place = scene.crustlet.pod_dir(&pod.uid());
        scene.crustlet.wait("nothing to be mounted", || {
            host::mounts_below(&place) == Vec::<PathBuf>::new()
        });
        let mounters = mounters(&scene, storage);
        assert!(!mounters.contains(&"deferred".to_owned()), "{mounters:?}");
    }
    let asked: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
    assert!(
        !asked.is_empty() && !asked.iter().any(|it| it.defer_fs_ops),
        "{asked:?}"
    );
    assert!(scene.published_deferred().abs() < f64::EPSILON);

    scene.csi.restart(&[]);
    for (pod, storage) in [(&web, &data), (&other, &logs)] {
        scene.crustlet.wait_pod(pod.name(), "Running");
        scene.assert_deferred(pod, storage);
        scene.end(pod);
    }
    scene.assert_nothing_left(&[&data, &logs]);
}
