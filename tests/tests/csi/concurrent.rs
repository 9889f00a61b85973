//! Concurrent calls: one of two calls for a volume may be aborted, and none is carried out twice.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::csi::{CsiClient, CsiRequest, create_request, filesystem};
use runcrust_tests::host::mounts_below;
use tonic::{Code, Status};

use crate::scene::{Scene, read, write};

const CALLS: usize = 8;

/// Asserts that at least one call succeeded and that each other one succeeded or was aborted. Returns the answers.
#[track_caller]
fn assert_others_aborted<T: std::fmt::Debug>(answers: Vec<Result<T, Status>>) -> Vec<T> {
    let mut succeeded = Vec::new();
    for answer in answers {
        match answer {
            Ok(answer) => succeeded.push(answer),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(!succeeded.is_empty(), "all calls were aborted");
    succeeded
}

fn at_once<C: CsiRequest>(scene: &Scene, call: &C) -> Vec<C::Response> {
    assert_others_aborted(scene.client().call_concurrently(call, CALLS))
}

#[test]
fn each_call_takes_effect_once() {
    let scene = Scene::new();
    // An xfs, because an ext4 only grows with CAP_SYS_RESOURCE.
    let made = at_once(&scene, &create_request("pv", filesystem("xfs")));
    assert!(made.iter().all(|it| *it == made[0]), "{made:?}");
    let volume = scene.volume("pv", filesystem("xfs"));
    assert_eq!(scene.ids(), [volume.id.as_str()]);

    at_once(&scene, &volume.stage());
    let _ = scene.device(&volume.id);
    let target = scene.target("pod", "pv");
    at_once(&scene, &volume.publish(&target));
    assert_eq!(mounts_below(&target), [target.as_path()]);
    write(&target, "file", "data");
    at_once(&scene, &volume.publish(&target));
    assert_eq!(read(&target, "file"), "data");
    at_once(&scene, &volume.grow(volume.capacity * 2));
    at_once(&scene, &volume.expand(&target, volume.capacity * 2));
    at_once(&scene, &volume.unpublish(&target));
    assert!(!target.exists());
    at_once(&scene, &volume.unstage());
    assert_eq!(scene.devices(&volume.id), Vec::<PathBuf>::new());
    at_once(&scene, &volume.delete());
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

/// A second mkfs would change the UUID, or destroy the data of the first pod.
#[test]
fn a_file_system_is_created_once() {
    let scene = Scene::new();
    for round in 0..5 {
        let volume = scene.volume("pv", filesystem("ext4"));
        let target = scene.target("pod", "pv");
        let (staged, repeated) = scene.call_both(volume.stage(), volume.stage());
        assert_others_aborted(vec![staged, repeated]);
        let superblock = || {
            let image = fs::read(scene.image(&volume.id)).expect("the image");
            image[1024 + 104..1024 + 120].to_vec()
        };
        let uuid = superblock();
        scene.call_ok(volume.publish(&target));
        write(&target, "file", "data");
        assert_others_aborted(scene.client().call_concurrently(&volume.stage(), CALLS));
        assert_eq!(superblock(), uuid, "round {round}");
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn publish_and_unpublish_end_in_one_of_two_states() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    for _ in 0..10 {
        let (published, unpublished) =
            scene.call_both(volume.publish(&target), volume.unpublish(&target));
        let worked = [published.is_ok(), unpublished.is_ok()];
        assert!(worked.contains(&true), "{published:?} {unpublished:?}");
        let mounts = mounts_below(&target);
        assert!(
            mounts.is_empty() || mounts == [target.as_path()],
            "{mounts:?}"
        );
        assert!(
            published.is_ok() || mounts.is_empty(),
            "mounted without a record: {mounts:?}"
        );
    }
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn stage_and_delete_end_in_one_of_two_states() {
    let scene = Scene::new();
    for _ in 0..10 {
        let volume = scene.volume("pv", filesystem("ext4"));
        let (staged, deleted) = scene.call_both(volume.stage(), volume.delete());
        match (staged, deleted) {
            (Ok(_), Err(_)) => scene.remove_volume(&volume, &[]),
            (Err(_), Ok(_)) => assert_eq!(scene.leftovers(), Vec::<PathBuf>::new()),
            (Ok(_), Ok(_)) => panic!("staged and deleted"),
            (Err(one), Err(other)) => panic!("both failed: {one}, {other}"),
        }
    }
}

#[test]
fn volumes_do_not_wait_for_one_another() {
    let scene = Scene::new();
    let lives = |index: usize| {
        let volume = scene.volume(&format!("pv-{index}"), filesystem("ext4"));
        let target = scene.target("pod", &format!("pv-{index}"));
        let client = CsiClient::new(scene.socket());
        move || {
            for _ in 0..3 {
                client.call(volume.stage()).expect("NodeStageVolume");
                client
                    .call(volume.publish(&target))
                    .expect("NodePublishVolume");
                write(&target, "file", &volume.id);
                client
                    .call(volume.unpublish(&target))
                    .expect("NodeUnpublishVolume");
                client
                    .call(volume.publish(&target))
                    .expect("NodePublishVolume");
                assert_eq!(read(&target, "file"), volume.id);
                client
                    .call(volume.unpublish(&target))
                    .expect("NodeUnpublishVolume");
                client.call(volume.unstage()).expect("NodeUnstageVolume");
            }
            client.call(volume.delete()).expect("DeleteVolume");
        }
    };
    let lives: Vec<_> = (0..6).map(lives).collect();
    std::thread::scope(|scope| {
        for life in lives {
            scope.spawn(life);
        }
    });
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}
