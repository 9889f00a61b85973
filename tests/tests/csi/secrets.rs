//! Secrets are not logged, and neither are values of mount options, which may be secrets.

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
    // The volume is an xfs, because an ext4 only grows with CAP_SYS_RESOURCE.
    let mut capability = filesystem("xfs");
    mount_of(&mut capability).mount_flags = vec![format!("{flag}{MARKER}")];
    capability
}

/// Asserts that the log contains all calls, and no secret.
#[track_caller]
fn assert_no_secret_in_log(scene: &Scene, calls: &[&str]) {
    let log = scene.log();
    for call in calls {
        assert!(log.contains(call), "{call} isn't logged:\n{log}");
    }
    assert!(!log.contains(MARKER), "{log}");
}

#[test]
fn successful_calls_are_logged_without_secrets() {
    let scene = Scene::with(&["--log-level", "trace"]);
    // The kernel never gets such an option, so its value is arbitrary.
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
    scene.unpublish_and_unstage(&volume, &[&target]);
    let mut delete = volume.delete();
    delete.secrets = secrets();
    scene.call_ok(delete);
    assert_no_secret_in_log(
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
fn failed_calls_are_logged_without_secrets() {
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
            "{flag:?}: a secret in the error: {status}"
        );
        let is_answered = !matches!(status.code(), Code::Unknown | Code::Unavailable);
        assert!(is_answered, "{status}");
        assert_no_secret_in_log(&scene, &[&volume.id, "NodeStageVolume"]);
        scene.call_ok(volume.unstage());
    }
}

/// Neither the error of a conflicting request nor the log contains the options of the first request.
#[test]
fn conflicts_are_reported_without_secrets() {
    let scene = Scene::with(&["--log-level", "trace"]);
    let volume = scene.staged("pv", capability("note="));
    let mut other = volume.clone();
    other.capability = capability("other=");
    let status = scene
        .call(other.stage())
        .expect_err("the volume is staged with other options");
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(!status.message().contains(MARKER), "{status}");
    assert_no_secret_in_log(&scene, &[&volume.id, "NodeStageVolume"]);
    scene.remove_volume(&volume, &[]);
}

/// The kernel's own message may contain the value as well.
#[test]
fn errors_of_the_kernel_are_reported_without_secrets() {
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
