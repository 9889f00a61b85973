//! The volume of a claim and an inline volume can't be taken for each other, whatever their ids and names are.

use crust_proto::csi::v1::{ListVolumesRequest, NodePublishVolumeRequest};
use runcrust_tests::POD;
use runcrust_tests::csi::{CsiVolume, create_request, filesystem};
use tonic::{Code, Status};

use super::inline_volume;
use crate::expect_error;
use crate::scene::{Scene, read, write};

const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// Returns the request of a publish with `csi.storage.k8s.io/ephemeral` set to a value, or without it.
fn with_ephemeral(
    mut request: NodePublishVolumeRequest,
    value: Option<&str>,
) -> NodePublishVolumeRequest {
    request.volume_context.remove(EPHEMERAL);
    if let Some(value) = value {
        request
            .volume_context
            .insert(EPHEMERAL.to_owned(), value.to_owned());
    }
    request
}

/// Calls everything that is only for the volumes of claims.
fn calls_for_claims(scene: &Scene, volume: &CsiVolume) -> [(&'static str, Result<(), Status>); 6] {
    let staging = scene.staging("staged");
    let at_staging = CsiVolume {
        staging: staging.clone(),
        ..volume.clone()
    };
    let target = scene.target(POD, "scratch");
    [
        ("stage", scene.call(at_staging.stage()).map(drop)),
        ("unstage", scene.call(at_staging.unstage()).map(drop)),
        ("grow", scene.call(volume.grow(64 << 20)).map(drop)),
        ("expand", scene.call(volume.expand(&target, 1)).map(drop)),
        ("validate", scene.call(volume.validate()).map(drop)),
        ("delete", scene.call(volume.delete()).map(drop)),
    ]
}

#[test]
fn calls_for_claims_do_not_reach_an_inline_volume() {
    let scene = Scene::new();
    let volume = CsiVolume::inline(POD, "scratch", filesystem("ext4"), &[]);
    let target = scene.target(POD, "scratch");
    scene.call_ok(volume.publish(&target));
    write(&target, "file", "data");
    for (name, called) in calls_for_claims(&scene, &volume) {
        let status = called.expect_err(name);
        assert_eq!(status.code(), Code::FailedPrecondition, "{name}: {status}");
        assert!(status.message().contains("hint: "), "{name}: {status}");
    }
    for value in [None, Some("false"), Some("")] {
        let request = with_ephemeral(volume.publish(&target), value);
        let error = expect_error(scene.call(request), Code::InvalidArgument);
        assert!(error.contains("podInfoOnMount"), "{error}");
    }
    assert_eq!(read(&target, "file"), "data");
    scene.call_ok(volume.unpublish(&target));
}

#[test]
fn an_inline_volume_does_not_reach_the_volume_of_a_claim() {
    let scene = Scene::new();
    let inline = inline_volume("scratch");
    // A claim's volume can have any name, and the id of an inline volume, too.
    let claimed = scene.create_volume(create_request(&inline.id, filesystem("ext4")));
    assert_ne!(claimed.id, inline.id);
    scene.call_ok(claimed.stage());
    let [of_claim, of_pod, other] = ["pv", "scratch", "other"].map(|name| scene.target(POD, name));
    let of_kubelet = |target| with_ephemeral(claimed.publish(target), Some("false"));
    scene.call_ok(of_kubelet(&of_claim));
    write(&of_claim, "file", "claim");
    scene.call_ok(inline.publish(&of_pod));
    write(&of_pod, "file", "pod");

    for id in [claimed.id.as_str(), "csi-../volumes/x", "scratch"] {
        let mut request = inline.publish(&other);
        id.clone_into(&mut request.volume_id);
        let error = expect_error(scene.call(request), Code::InvalidArgument);
        assert!(error.contains("csi- and 64 hex digits"), "{error}");
    }
    expect_error(
        scene.call(inline.publish(&of_claim)),
        Code::FailedPrecondition,
    );
    assert_eq!(read(&of_pod, "file"), "pod");
    scene.call_ok(inline.unpublish(&of_pod));
    scene.call_ok(inline.unpublish(&of_pod));
    scene
        .call(inline.unpublish(&of_claim))
        .expect_err("the target of a claim's volume");
    assert_eq!(read(&of_claim, "file"), "claim");
    let listed = scene.call_ok(ListVolumesRequest::default()).entries;
    assert_eq!(listed.len(), 1);
    scene.call_ok(of_kubelet(&of_claim));
    scene.remove_volume(&claimed, &[&of_claim]);
}
