//! `GetCapacity`: space that was promised to one volume is not offered to another.

use std::path::PathBuf;

use crust_proto::csi::v1::{CapacityRange, GetCapacityRequest, NodeGetInfoRequest};
use runcrust_tests::csi::{CsiClient, create_request, filesystem};
use tonic::Code;

use crate::scene::Scene;
use crate::{expect_error, expect_error_in};

const MIB: i64 = 1 << 20;

fn available(scene: &Scene, request: GetCapacityRequest) -> i64 {
    let answer = scene.call_ok(request);
    assert!(answer.available_capacity >= 0, "{answer:?}");
    assert!(
        answer.maximum_volume_size.is_none_or(|most| most >= 0),
        "{answer:?}"
    );
    assert!(
        answer.minimum_volume_size.is_none_or(|least| least >= 0),
        "{answer:?}"
    );
    answer.available_capacity
}

fn available_capacity(scene: &Scene) -> i64 {
    available(scene, GetCapacityRequest::default())
}

fn request_with_size(name: &str, mebibytes: i64) -> crust_proto::csi::v1::CreateVolumeRequest {
    let mut request = create_request(name, filesystem("ext4"));
    request.capacity_range = Some(CapacityRange {
        required_bytes: mebibytes * MIB,
        limit_bytes: 0,
    });
    request
}

#[test]
fn volumes_take_and_free_capacity() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    assert_eq!(available_capacity(&scene), 100 * MIB);
    let volume = scene.create_volume(request_with_size("a", 64));
    assert_eq!(available_capacity(&scene), 36 * MIB);
    let message = expect_error(
        scene.call(request_with_size("b", 40)),
        Code::ResourceExhausted,
    );
    assert!(message.contains("--capacity"), "{message}");
    assert_eq!(
        (available_capacity(&scene), scene.ids().len()),
        (36 * MIB, 1),
        "no volume was created"
    );
    let _ = scene.create_volume(request_with_size("b", 36));
    assert_eq!(available_capacity(&scene), 0);
    scene
        .call(request_with_size("b", 36))
        .expect("an existing volume");

    expect_error(scene.call(volume.grow(65 * MIB)), Code::ResourceExhausted);
    scene
        .call(volume.grow(64 * MIB))
        .expect("a size that the volume has already");
    scene.restart(&["--capacity", "104857600"]);
    assert_eq!(available_capacity(&scene), 0);
    scene.call_ok(volume.delete());
    assert_eq!(available_capacity(&scene), 64 * MIB);
}

#[test]
fn growth_takes_capacity() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    let volume = scene.create_volume(request_with_size("a", 40));
    scene.call_ok(volume.grow(90 * MIB));
    assert_eq!(available_capacity(&scene), 10 * MIB);
    expect_error(scene.call(volume.grow(101 * MIB)), Code::ResourceExhausted);
    assert_eq!(
        available_capacity(&scene),
        10 * MIB,
        "a failed call takes no space"
    );
    let grown = scene
        .call(volume.grow(90 * MIB))
        .expect("the repeated call");
    assert_eq!(grown.capacity_bytes, 90 * MIB);
}

#[test]
fn without_a_limit_the_disk_is_the_capacity() {
    let scene = Scene::new();
    let disk = nix::sys::statvfs::statvfs(scene.data()).expect("statvfs");
    let all = i64::try_from(disk.blocks() * disk.fragment_size()).expect("the size of a disk");
    assert!((1..=all).contains(&available_capacity(&scene)));
    expect_error(
        scene.call(request_with_size("a", all / MIB + 1024)),
        Code::ResourceExhausted,
    );
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn impossible_volumes_have_no_capacity() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    let this_node = scene.call_ok(NodeGetInfoRequest {});
    let this_node = this_node.accessible_topology.expect("a topology");
    let mut other_node = this_node.clone();
    for segment in other_node.segments.values_mut() {
        "another".clone_into(segment);
    }
    let of = |change: &dyn Fn(&mut GetCapacityRequest)| {
        let mut request = GetCapacityRequest::default();
        change(&mut request);
        available(&scene, request)
    };
    let deferred = |value: &str| {
        let pair = ("crust.dev/defer".to_owned(), value.to_owned());
        std::collections::HashMap::from([pair])
    };
    assert_eq!(
        of(&|it| it.accessible_topology = Some(this_node.clone())),
        100 * MIB
    );
    assert_eq!(
        of(&|it| it.accessible_topology = Some(other_node.clone())),
        0
    );
    assert_eq!(
        of(&|it| it.volume_capabilities = vec![filesystem("ext4")]),
        100 * MIB
    );
    assert_eq!(
        of(&|it| it.volume_capabilities = vec![filesystem("ntfs")]),
        0
    );
    assert_eq!(of(&|it| it.parameters = deferred("true")), 100 * MIB);
    assert_eq!(of(&|it| it.parameters = deferred("maybe")), 0);
}

#[test]
fn volumes_created_at_once_share_the_capacity() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    let made = std::thread::scope(|scope| {
        let work = |index: usize| {
            let client = CsiClient::new(scene.socket());
            move || client.call(request_with_size(&format!("pv-{index}"), 32))
        };
        let threads: Vec<_> = (0..8).map(|index| scope.spawn(work(index))).collect();
        let answers = threads
            .into_iter()
            .map(|thread| thread.join().expect("a client"));
        answers.collect::<Vec<_>>()
    });
    let (made, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), scene.ids().len()), (3, 3));
    for answer in failed {
        expect_error_in(answer, Code::ResourceExhausted, "one of eight");
    }
}
