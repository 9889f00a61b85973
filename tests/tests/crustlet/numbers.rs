//! A driver counts as deferring only if it reports a capability with a number outside of CSI's own
//! (docs/csi-drivers.md), and if it then mounts nothing.

use std::path::PathBuf;

use crust_proto::csi::v1::node_service_capability::Type;
use crust_proto::csi::v1::{
    NodeGetCapabilitiesRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
};
use runcrust_tests::{Delegate, Setup, host};
use tonic::Status;

use crate::scene::{Scene, Storage, WITHOUT_DEFERRAL, pod_with};

/// The numbers of KEP-2857's three capabilities.
const DEFERRAL: [i32; 3] = [101, 102, 103];

fn setup_without_deferral() -> Setup<'static> {
    Setup {
        driver: &WITHOUT_DEFERRAL,
        ..Setup::default()
    }
}

/// The mounters of a volume, as `crustlet get volumes` reports them.
fn mounters(scene: &Scene, storage: &Storage) -> Vec<String> {
    let shown = scene.crustlet.volume(&storage.volume.id);
    let mounts = shown.and_then(|it| it["status"]["mounts"].as_array().cloned());
    let mounters = mounts.unwrap_or_default().into_iter();
    mounters
        .map(|it| it["mounter"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// CSI 1.13 assigned 7 and 8, which KEP-2857 uses for deferral, to `GET_VOLUME_HEALTH` and `GET_STORAGE_HEALTH`.
#[test]
fn the_numbers_of_health_calls_do_not_mean_deferral() {
    let scene = Scene::with(Delegate::Runc, &setup_without_deferral());
    let answer = scene.csi.call(NodeGetCapabilitiesRequest {});
    let capabilities = answer.expect("NodeGetCapabilities").capabilities;
    let numbers: Vec<i32> = capabilities
        .into_iter()
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

/// The driver reports that it can defer, and ignores the request to do so.
#[test]
fn a_driver_that_mounts_what_it_should_defer_is_unpublished() {
    let scene = Scene::with(Delegate::Runc, &setup_without_deferral());
    let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
    let (web, other) = (
        pod_with("web", "data", true),
        pod_with("other", "logs", true),
    );
    scene.relay.claim_capabilities(&DEFERRAL);
    scene.apply_pod(&web);
    let message = scene
        .crustlet
        .wait_event_containing("pod/web", "FailedMount", "on the host");
    assert!(
        message.contains(runcrust_tests::csi::DRIVER) && message.contains("csi.proto"),
        "{message}"
    );
    scene.crustlet.wait("another attempt", || {
        scene.relay.requests::<NodePublishVolumeRequest>().len() > 1
    });

    // If the driver's mount can't be undone, the agent reports it as the driver's.
    let unavailable = Status::unavailable("refused by the test");
    scene
        .relay
        .refuse::<NodeUnpublishVolumeRequest>(unavailable);
    scene.apply_pod(&other);
    scene
        .crustlet
        .wait_event_containing("pod/other", "FailedMount", "NodeUnpublishVolume failed");
    scene
        .crustlet
        .wait("the driver's mount to be reported", || {
            mounters(&scene, &logs) == ["driver"]
        });
    let uid = other.uid();
    let recorded = scene.crustlet.vol_data(&uid, &logs.pv);
    assert_ne!(recorded["deferFSMount"], "true", "{recorded}");

    // From here on the driver reports its real capabilities.
    scene.relay.clear_faults();
    scene
        .crustlet
        .wait_event_containing("pod/other", "FailedMount", "DEFER_FS_OPS");
    for (pod, storage) in [(&web, &data), (&other, &logs)] {
        let directory = scene.crustlet.pod_dir(&pod.uid());
        scene.crustlet.wait("nothing to be mounted", || {
            host::mounts_below(&directory) == Vec::<PathBuf>::new()
        });
        let mounters = mounters(&scene, storage);
        assert!(!mounters.contains(&"deferred".to_owned()), "{mounters:?}");
    }
    let requests: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
    assert!(
        !requests.is_empty() && !requests.iter().any(|it| it.defer_fs_ops),
        "{requests:?}"
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
