//! How much room there is: what was promised to one volume is no other's.

use std::path::PathBuf;

use crust_proto::csi::v1::{CapacityRange, GetCapacityRequest, NodeGetInfoRequest};
use runcrust_tests::csi::{CsiClient, create_request, filesystem};
use tonic::Code;

use crate::scene::Scene;
use crate::{refused, refused_as};

const MIB: i64 = 1 << 20;

fn available(scene: &Scene, request: GetCapacityRequest) -> i64 {
    let told = scene.call_ok(request);
    assert!(told.available_capacity >= 0, "{told:?}");
    assert!(
        told.maximum_volume_size.is_none_or(|most| most >= 0),
        "{told:?}"
    );
    assert!(
        told.minimum_volume_size.is_none_or(|least| least >= 0),
        "{told:?}"
    );
    told.available_capacity
}

fn left(scene: &Scene) -> i64 {
    available(scene, GetCapacityRequest::default())
}

fn sized(name: &str, mebibytes: i64) -> crust_proto::csi::v1::CreateVolumeRequest {
    let mut request = create_request(name, filesystem("ext4"));
    request.capacity_range = Some(CapacityRange {
        required_bytes: mebibytes * MIB,
        limit_bytes: 0,
    });
    request
}

#[test]
fn volumes_take_it_and_give_it_back() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    assert_eq!(left(&scene), 100 * MIB);
    let volume = scene.create_volume(sized("a", 64));
    assert_eq!(left(&scene), 36 * MIB);
    let message = refused(scene.call(sized("b", 40)), Code::ResourceExhausted);
    assert!(message.contains("--capacity"), "{message}");
    assert_eq!(
        (left(&scene), scene.ids().len()),
        (36 * MIB, 1),
        "and nothing was made"
    );
    let _ = scene.create_volume(sized("b", 36));
    assert_eq!(left(&scene), 0);
    scene.call(sized("b", 36)).expect("it is there already");

    refused(scene.call(volume.grow(65 * MIB)), Code::ResourceExhausted);
    scene.call(volume.grow(64 * MIB)).expect("it has that");
    scene.restart(&["--capacity", "104857600"]);
    assert_eq!(left(&scene), 0);
    scene.call_ok(volume.delete());
    assert_eq!(left(&scene), 64 * MIB);
}

#[test]
fn growth_takes_it_too() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    let volume = scene.create_volume(sized("a", 40));
    scene.call_ok(volume.grow(90 * MIB));
    assert_eq!(left(&scene), 10 * MIB);
    refused(scene.call(volume.grow(101 * MIB)), Code::ResourceExhausted);
    assert_eq!(left(&scene), 10 * MIB, "what failed took nothing");
    let grown = scene.call(volume.grow(90 * MIB)).expect("again");
    assert_eq!(grown.capacity_bytes, 90 * MIB);
}

#[test]
fn without_a_limit_it_is_what_the_disk_has() {
    let scene = Scene::new();
    let disk = nix::sys::statvfs::statvfs(scene.data()).expect("statvfs");
    let all = i64::try_from(disk.blocks() * disk.fragment_size()).expect("it is a disk's");
    assert!((1..=all).contains(&left(&scene)));
    refused(
        scene.call(sized("a", all / MIB + 1024)),
        Code::ResourceExhausted,
    );
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn there_is_none_for_what_there_cannot_be() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    let here = scene.call_ok(NodeGetInfoRequest {});
    let here = here.accessible_topology.expect("where it is");
    let mut there = here.clone();
    for place in there.segments.values_mut() {
        "another".clone_into(place);
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
        of(&|it| it.accessible_topology = Some(here.clone())),
        100 * MIB
    );
    assert_eq!(of(&|it| it.accessible_topology = Some(there.clone())), 0);
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
fn volumes_that_are_made_at_once_share_it() {
    let scene = Scene::with(&["--capacity", "104857600"]);
    let made = std::thread::scope(|scope| {
        let work = |index: usize| {
            let client = CsiClient::of(scene.socket());
            move || client.call(sized(&format!("pv-{index}"), 32))
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
        refused_as(answer, Code::ResourceExhausted, "one of eight");
    }
}
