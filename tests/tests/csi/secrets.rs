//! What nobody may log: secrets, and mount options, which may be some.

use std::collections::HashMap;

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::{create_request, filesystem, mount_of};
use tonic::Code;

use crate::scene::Scene;

const MARKER: &str = "v3ry-s3cr3t";

fn secrets() -> HashMap<String, String> {
    HashMap::from([("password".to_owned(), MARKER.to_owned())])
}

fn capability(flag: &str) -> VolumeCapability {
    // Which grows everywhere.
    let mut capability = filesystem("xfs");
    mount_of(&mut capability).mount_flags = vec![format!("{flag}{MARKER}")];
    capability
}

/// The log has all calls, and nothing of what they were told in confidence.
#[track_caller]
fn assert_discreet(scene: &Scene, calls: &[&str]) {
    let log = scene.log();
    for call in calls {
        assert!(log.contains(call), "{call} isn't logged:\n{log}");
    }
    assert!(!log.contains(MARKER), "{log}");
}

#[test]
fn what_works_is_logged_without_them() {
    let scene = Scene::with(&["--log-level", "trace"]);
    // The kernel never sees such an option, and so it may say anything.
    let mut create = create_request("pv", capability("x-note="));
    create.secrets = secrets();
    let volume = scene.create_volume(create);
    let mut stage = volume.stage();
    stage.secrets = secrets();
    stage.publish_context = secrets();
    scene.call_ok(stage);
    let target = scene.target("pod", "pv");
    let mut publish = volume.publish(&target);
    publish.secrets = secrets();
    publish.publish_context = secrets();
    scene.call_ok(publish);
    let mut grow = volume.grow(volume.capacity * 2);
    grow.secrets = secrets();
    scene.call_ok(grow);
    let mut expand = volume.expand(&target, volume.capacity * 2);
    expand.secrets = secrets();
    scene.call_ok(expand);
    let mut validate = volume.validate();
    validate.secrets = secrets();
    scene.call_ok(validate);
    scene.take_back(&volume, &[&target]);
    let mut delete = volume.delete();
    delete.secrets = secrets();
    scene.call_ok(delete);
    assert_discreet(
        &scene,
        &[
            &volume.id,
            "CreateVolume",
            "NodeStageVolume",
            "NodePublishVolume",
            "ControllerExpandVolume",
            "NodeExpandVolume",
            "NodeUnpublishVolume",
            "NodeUnstageVolume",
            "DeleteVolume",
        ],
    );
}

#[test]
fn what_fails_is_logged_without_them() {
    let scene = Scene::with(&["--log-level", "trace"]);
    for flag in [
        "password=",
        "commit=",
        "bind,password=",
        "context=\"",
        "\u{1}",
    ] {
        let name = format!("pv {flag:?}");
        let mut create = create_request(&name, filesystem("ext4"));
        create.secrets = secrets();
        let mut volume = scene.create_volume(create);
        volume.capability = capability(flag);
        let mut stage = volume.stage();
        stage.secrets = secrets();
        let target = scene.target("pod", "pv");
        let mut publish = volume.publish(&target);
        publish.secrets = secrets();
        let status = scene.call(stage).and_then(|_| scene.call(publish));
        let status = status
            .map(drop)
            .expect_err("no file system has such an option");
        assert!(
            !status.message().contains(MARKER),
            "{flag:?}: the answer is logged too: {status}"
        );
        let is_answered = !matches!(status.code(), Code::Unknown | Code::Unavailable);
        assert!(is_answered, "{status}");
        assert_discreet(&scene, &[&volume.id, "NodeStageVolume"]);
        scene.call_ok(volume.unstage());
    }
}

/// Who asks for another's publication isn't told its options, and neither is the log.
#[test]
fn what_conflicts_is_told_without_them() {
    let scene = Scene::with(&["--log-level", "trace"]);
    let volume = scene.staged("pv", capability("note="));
    let mut other = volume.clone();
    other.capability = capability("other=");
    let status = scene
        .call(other.stage())
        .expect_err("it is staged with other options");
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(!status.message().contains(MARKER), "{status}");
    assert_discreet(&scene, &[&volume.id, "NodeStageVolume"]);
    scene.put_away(&volume, &[]);
}

/// The kernel's own words may have it, too.
#[test]
fn what_the_kernel_refuses_is_told_without_them() {
    let scene = Scene::new();
    let mut capability = filesystem("ext4");
    mount_of(&mut capability).mount_flags = vec![format!("data={MARKER}")];
    let volume = scene.staged("pv", capability);
    let target = scene.target("pod", "pv");
    let status = scene
        .call(volume.publish(&target))
        .expect_err("ext4 knows no such value");
    assert!(status.message().contains("data="), "{status}");
    for text in [status.message(), &scene.log()] {
        assert!(!text.contains(MARKER), "{text}");
    }
}
