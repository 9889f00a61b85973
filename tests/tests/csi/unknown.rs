//! Unknown volumes: `NOT_FOUND`, except for `DeleteVolume`, which succeeds, and for `NodeUnpublishVolume` and
//! `NodeUnstageVolume`, which remove what is at the path.

use std::fs;

use runcrust_tests::csi::{CsiVolume, filesystem};
use tonic::Code;

use crate::expect_error;
use crate::scene::Scene;

/// Ids that no driver assigns, and one that this driver could have assigned.
fn ids() -> Vec<String> {
    let possible = format!("crust-{}", "0".repeat(32));
    let long = "x".repeat(4000);
    let fixed = [
        "no-such-volume",
        "../volumes/x",
        "/",
        ".",
        "..",
        "x\ny",
        "lock",
    ];
    let fixed = fixed.into_iter().map(str::to_owned);
    fixed.chain([possible, long]).collect()
}

fn unknown(scene: &Scene, id: &str) -> CsiVolume {
    CsiVolume {
        id: id.to_owned(),
        context: std::collections::HashMap::default(),
        capacity: 32 << 20,
        capability: filesystem("ext4"),
        staging: scene.node.dir().join("staging"),
    }
}

#[test]
fn calls_for_an_unknown_volume_are_not_found() {
    let scene = Scene::new();
    let target = scene.target("pod", "pv");
    for id in ids() {
        let volume = unknown(&scene, &id);
        expect_error(scene.call(volume.stage()), Code::NotFound);
        expect_error(scene.call(volume.publish(&target)), Code::NotFound);
        expect_error(scene.call(volume.stats(&target)), Code::NotFound);
        expect_error(scene.call(volume.expand(&target, 64 << 20)), Code::NotFound);
        expect_error(scene.call(volume.grow(64 << 20)), Code::NotFound);
        expect_error(scene.call(volume.validate()), Code::NotFound);
        expect_error(scene.call(volume.health(&target)), Code::NotFound);
        scene
            .call(volume.unpublish(&target))
            .expect("nothing is published");
        scene.call(volume.unstage()).expect("nothing is staged");
    }
    assert!(!target.exists());
}

#[test]
fn deleting_an_unknown_volume_succeeds() {
    let scene = Scene::new();
    let kept = scene.volume("pv", filesystem("ext4"));
    for id in ids() {
        let deleted = scene.call(unknown(&scene, &id).delete());
        deleted.unwrap_or_else(|status| panic!("{id}: {status}"));
    }
    assert!(fs::exists(scene.image(&kept.id)).expect("stat"));
    assert_eq!(scene.ids(), [kept.id]);
}

#[test]
fn a_deleted_volume_is_not_found() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene.call_ok(volume.delete());
    let target = scene.target("pod", "pv");
    expect_error(scene.call(volume.stage()), Code::NotFound);
    expect_error(scene.call(volume.publish(&target)), Code::NotFound);
    expect_error(scene.call(volume.validate()), Code::NotFound);
}
