//! Calls for volumes in the spec of a pod. kubelet repeats a call whose result it doesn't know, or unpublishes the
//! volume.

use std::path::PathBuf;

use runcrust_tests::POD;
use runcrust_tests::csi::CsiClient;
use runcrust_tests::host::mounts_below;
use tonic::Status;

use super::call;
use crate::crashed::{VolumeUnderTest, kill_and_recover, restart_and_retry};
use crate::deferred_publish_request;
use crate::inline::inline_volume;
use crate::scene::{Scene, read, write};

fn inline(scene: &Scene) -> VolumeUnderTest {
    VolumeUnderTest {
        volume: inline_volume("scratch"),
        target: scene.target(POD, "scratch"),
        has_data: false,
    }
}

/// A published volume with data.
fn published(scene: &Scene) -> VolumeUnderTest {
    let volume_under_test = inline(scene);
    let VolumeUnderTest { volume, target, .. } = &volume_under_test;
    scene.call_ok(volume.publish(target));
    write(target, "file", "data");
    volume_under_test
}

fn deferred(scene: &Scene) -> VolumeUnderTest {
    let volume_under_test = inline(scene);
    let VolumeUnderTest { volume, target, .. } = &volume_under_test;
    scene.call_ok(deferred_publish_request(volume, target));
    volume_under_test
}

fn publish(client: &CsiClient, volume_under_test: &VolumeUnderTest) -> Result<(), Status> {
    let VolumeUnderTest { volume, target, .. } = volume_under_test;
    call(client, volume.publish(target))
}

fn defer(client: &CsiClient, volume_under_test: &VolumeUnderTest) -> Result<(), Status> {
    let VolumeUnderTest { volume, target, .. } = volume_under_test;
    call(client, deferred_publish_request(volume, target))
}

fn unpublish(client: &CsiClient, volume_under_test: &VolumeUnderTest) -> Result<(), Status> {
    let VolumeUnderTest { volume, target, .. } = volume_under_test;
    call(client, volume.unpublish(target))
}

/// Unpublishes the volume until that succeeds, and asserts that nothing is left of it.
fn recover_by_unpublishing(scene: &Scene, volume_under_test: &VolumeUnderTest) {
    let target = &volume_under_test.target;
    restart_and_retry(unpublish, scene, volume_under_test);
    unpublish(scene.client(), volume_under_test).expect("the repeated call");
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
    assert_eq!(mounts_below(target), Vec::<PathBuf>::new());
    assert!(!scene.node.entry(target).exists(), "still staged");
    assert!(!target.exists());
}

#[test]
fn a_killed_publish_of_an_inline_volume_can_be_repeated() {
    kill_and_recover(publish, &inline, &|scene, volume_under_test| {
        let target = &volume_under_test.target;
        restart_and_retry(publish, scene, volume_under_test);
        publish(scene.client(), volume_under_test).expect("the repeated call");
        assert_eq!(mounts_below(target), [target.as_path()]);
        write(target, "file", "data");
        scene.restart(&[]);
        publish(scene.client(), volume_under_test).expect("the call after a restart");
        assert_eq!(read(target, "file"), "data");
        scene.kill();
        recover_by_unpublishing(scene, volume_under_test);
    });
}

#[test]
fn a_killed_deferred_publish_of_an_inline_volume_repeats() {
    kill_and_recover(defer, &inline, &|scene, volume_under_test| {
        let VolumeUnderTest { volume, target, .. } = volume_under_test;
        restart_and_retry(defer, scene, volume_under_test);
        defer(scene.client(), volume_under_test).expect("the repeated call");
        let staged = scene.node.entry(target).join("mountInfo.json");
        let staged = std::fs::read_to_string(staged).expect("mountInfo.json");
        let device = scene.device(&volume.id);
        assert!(
            staged.contains(&format!("\"{}\"", device.display())),
            "{staged}"
        );
        scene.kill();
        recover_by_unpublishing(scene, volume_under_test);
    });
}

#[test]
fn a_killed_publish_of_an_inline_volume_can_be_undone() {
    kill_and_recover(publish, &inline, &recover_by_unpublishing);
}

#[test]
fn a_killed_deferred_publish_of_an_inline_volume_is_undone() {
    kill_and_recover(defer, &inline, &recover_by_unpublishing);
}

#[test]
fn a_killed_unpublish_of_an_inline_volume_can_be_repeated() {
    kill_and_recover(unpublish, &published, &recover_by_unpublishing);
}

#[test]
fn a_killed_unpublish_of_a_deferred_inline_volume_repeats() {
    kill_and_recover(unpublish, &deferred, &recover_by_unpublishing);
}
