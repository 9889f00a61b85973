//! Volumes that there are not: `NOT_FOUND`, but for `DeleteVolume`, which has nothing to do, and for
//! `NodeUnpublishVolume` and `NodeUnstageVolume`, which give back what stands at the path.

use std::fs;

use runcrust_tests::csi::{CsiVolume, filesystem};
use tonic::Code;

use crate::refused;
use crate::scene::Scene;

/// Ids that no driver gives, and one that this one might.
fn ids() -> Vec<String> {
    let might_be = format!("crust-{}", "0".repeat(32));
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
    fixed.chain([might_be, long]).collect()
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
fn each_call_about_one_says_that_there_is_none() {
    let scene = Scene::new();
    let target = scene.target("pod", "pv");
    for id in ids() {
        let volume = unknown(&scene, &id);
        refused(scene.call(volume.stage()), Code::NotFound);
        refused(scene.call(volume.publish(&target)), Code::NotFound);
        refused(scene.call(volume.stats(&target)), Code::NotFound);
        refused(scene.call(volume.expand(&target, 64 << 20)), Code::NotFound);
        refused(scene.call(volume.grow(64 << 20)), Code::NotFound);
        refused(scene.call(volume.validate()), Code::NotFound);
        refused(scene.call(volume.health(&target)), Code::NotFound);
        scene
            .call(volume.unpublish(&target))
            .expect("it isn't published");
        scene.call(volume.unstage()).expect("nor staged");
    }
    assert!(!target.exists());
}

#[test]
fn one_that_is_not_there_is_deleted_already() {
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
fn one_that_was_deleted_is_not_there() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene.call_ok(volume.delete());
    let target = scene.target("pod", "pv");
    refused(scene.call(volume.stage()), Code::NotFound);
    refused(scene.call(volume.publish(&target)), Code::NotFound);
    refused(scene.call(volume.validate()), Code::NotFound);
}
