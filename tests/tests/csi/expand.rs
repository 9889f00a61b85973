//! `ControllerExpandVolume` and `NodeExpandVolume`: volumes grow while they are used, and never shrink.

use std::fs;
use std::path::Path;

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, GetCapacityRequest, ListVolumesRequest,
};
use runcrust_tests::csi::{CsiVolume, block, create_request, filesystem};
use runcrust_tests::node::utf8;
use tonic::Code;

use crate::scene::{Scene, read, write};
use crate::{expect_error, expect_error_in};

const MIB: i64 = 1 << 20;

fn ranged(volume: &CsiVolume, least: i64, most: i64) -> ControllerExpandVolumeRequest {
    let mut request = volume.grow(0);
    request.capacity_range = Some(CapacityRange {
        required_bytes: least,
        limit_bytes: most,
    });
    request
}

fn blocks(target: &Path) -> i64 {
    let stat = nix::sys::statvfs::statvfs(target).expect("statvfs");
    i64::try_from(stat.blocks() * stat.fragment_size()).expect("a small number")
}

fn image(scene: &Scene, volume: &CsiVolume) -> i64 {
    let image = fs::metadata(scene.image(&volume.id)).expect("the image");
    i64::try_from(image.len()).expect("a small number")
}

#[test]
fn a_volume_grows_and_its_growth_can_be_repeated() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    for _ in 0..2 {
        let grown = scene.call_ok(volume.grow(64 * MIB));
        assert_eq!(
            (grown.capacity_bytes, grown.node_expansion_required),
            (64 * MIB, true)
        );
        assert_eq!(image(&scene, &volume), 64 * MIB);
    }
    let less = scene
        .call(volume.grow(40 * MIB))
        .expect("a size that the volume has already");
    assert_eq!(less.capacity_bytes, 64 * MIB);
    scene.restart(&[]);
    let repeated = scene
        .call(ranged(&volume, 50 * MIB, 70 * MIB))
        .expect("within");
    assert_eq!(repeated.capacity_bytes, 64 * MIB);
}

/// The driver is killed after the image has grown and before the new size is on record, and the next request differs.
#[test]
fn growth_is_noticed_without_a_record() {
    let scene = Scene::with(&["--capacity", "1073741824"]);
    let volume = scene.staged("pv", filesystem("xfs"));
    let target = scene.publish(&volume, "pod");
    let file = scene
        .data()
        .join("volumes")
        .join(format!("{}.json", volume.id));
    let record = fs::read(&file).expect("the record");
    let wanted = volume.capacity * 2;
    scene.call_ok(volume.grow(wanted));
    scene.kill();
    fs::write(&file, record).expect("the record");
    scene.spawn(scene.command(&["--capacity", "1073741824"]));

    let free = scene.call_ok(GetCapacityRequest::default());
    assert_eq!(
        free.available_capacity,
        (1 << 30) - wanted,
        "no space is promised twice"
    );
    let listed = scene.call_ok(ListVolumesRequest::default());
    let listed = listed.entries[0].volume.as_ref().expect("a REQUIRED field");
    assert_eq!(listed.capacity_bytes, wanted);
    let limited = ranged(&volume, volume.capacity + MIB, volume.capacity + MIB);
    expect_error(scene.call(limited), Code::OutOfRange);
    let mut limited = volume.expand(&target, 0);
    limited.capacity_range = Some(CapacityRange {
        required_bytes: 0,
        limit_bytes: volume.capacity + MIB,
    });
    expect_error(scene.call(limited), Code::OutOfRange);
    let mut smaller = create_request("pv", filesystem("xfs"));
    smaller.capacity_range = Some(CapacityRange {
        required_bytes: 0,
        limit_bytes: volume.capacity,
    });
    expect_error(scene.call(smaller), Code::AlreadyExists);
    for more in [volume.capacity + MIB, wanted, wanted + MIB] {
        let grown = scene.call_ok(volume.grow(more));
        assert_eq!(grown.capacity_bytes, more.max(wanted));
        assert_eq!(image(&scene, &volume), more.max(wanted));
    }
    let grown = scene.call_ok(volume.expand(&target, wanted));
    assert_eq!(grown.capacity_bytes, wanted + MIB);
    assert!(
        blocks(&target) > volume.capacity * 3 / 2,
        "{}",
        blocks(&target)
    );
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_volume_never_shrinks() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    for (least, most) in [(0, 16 * MIB), (1, volume.capacity - 1)] {
        let what = format!("{least} to {most}");
        expect_error_in(
            scene.call(ranged(&volume, least, most)),
            Code::OutOfRange,
            &what,
        );
    }
    for (least, most) in [(-1, 0), (0, -1), (65 * MIB, 64 * MIB)] {
        let what = format!("{least} to {most}");
        expect_error_in(
            scene.call(ranged(&volume, least, most)),
            Code::InvalidArgument,
            &what,
        );
    }
    expect_error_in(
        scene.call(ranged(&volume, i64::MAX, 0)),
        Code::OutOfRange,
        "more than the largest file",
    );
    assert_eq!(image(&scene, &volume), volume.capacity);
}

fn assert_grows_while_used(fstype: &str) {
    let (scene, volume) = Scene::with_staged(filesystem(fstype));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    let before = blocks(&target);
    let wanted = volume.capacity * 2;
    scene.call_ok(volume.grow(wanted));
    for _ in 0..2 {
        let grown = scene.call(volume.expand(&target, wanted));
        assert_eq!(grown.expect("NodeExpandVolume").capacity_bytes, wanted);
        let now = blocks(&target);
        assert!(now > before * 3 / 2, "{now} of {before}");
    }
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

fn assert_grows_before_publish(fstype: &str) {
    let (scene, volume) = Scene::with_staged(filesystem(fstype));
    let wanted = volume.capacity * 2;
    scene.call_ok(volume.grow(wanted));
    let grown = scene.call(volume.expand(&volume.staging, wanted));
    assert_eq!(grown.expect("NodeExpandVolume").capacity_bytes, wanted);
    let target = scene.publish(&volume, "pod");
    assert!(blocks(&target) > volume.capacity, "{}", blocks(&target));
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn an_xfs_grows_in_use() {
    assert_grows_while_used("xfs");
}

#[test]
fn a_btrfs_grows_in_use() {
    assert_grows_while_used("btrfs");
}

#[test]
#[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
fn an_ext4_grows_in_use() {
    assert_grows_while_used("ext4");
}

#[test]
fn an_xfs_grows_between_stage_and_publish() {
    assert_grows_before_publish("xfs");
}

#[test]
fn a_btrfs_grows_between_stage_and_publish() {
    assert_grows_before_publish("btrfs");
}

#[test]
#[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
fn an_ext4_grows_between_stage_and_publish() {
    assert_grows_before_publish("ext4");
}

#[test]
fn a_block_volume_is_larger_at_once() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    scene.call_ok(volume.grow(volume.capacity * 2));
    scene.call_ok(volume.expand(&target, volume.capacity * 2));
    let mut blockdev = std::process::Command::new("blockdev");
    let size =
        runcrust_tests::Run::capture(blockdev.args(["--getsize64", utf8(&target)])).success();
    assert_eq!(size.stdout.trim().parse(), Ok(volume.capacity * 2));
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn the_node_does_not_grow_before_the_controller() {
    let (scene, volume) = Scene::with_staged(filesystem("xfs"));
    let target = scene.publish(&volume, "pod");
    expect_error(
        scene.call(volume.expand(&target, volume.capacity * 2)),
        Code::OutOfRange,
    );
    let mut smaller = volume.expand(&target, 0);
    smaller.capacity_range = Some(CapacityRange {
        required_bytes: 0,
        limit_bytes: volume.capacity - 1,
    });
    expect_error(scene.call(smaller), Code::OutOfRange);
    let mut negative = volume.expand(&target, -1);
    expect_error(scene.call(negative.clone()), Code::InvalidArgument);
    // Without a size in the request, the size of the image is used.
    negative.capacity_range = None;
    scene.call_ok(volume.grow(volume.capacity * 2));
    let grown = scene.call_ok(negative);
    assert_eq!(grown.capacity_bytes, volume.capacity * 2);
    assert!(blocks(&target) > volume.capacity);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn an_unrelated_path_is_not_found() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let elsewhere = scene.target("other", "pv");
    expect_error(
        scene.call(volume.expand(&elsewhere, volume.capacity)),
        Code::NotFound,
    );
    expect_error(
        scene.call(volume.expand(Path::new("/tmp"), volume.capacity)),
        Code::NotFound,
    );
    scene.remove_volume(&volume, &[&target]);
}

/// A volume that is not staged cannot be expanded on the node. The expansion on the node happens after the next stage.
#[test]
fn a_volume_that_grew_offline_is_expanded_later() {
    let (scene, volume) = Scene::with_staged(filesystem("xfs"));
    scene.unpublish_and_unstage(&volume, &[]);
    scene.call_ok(volume.grow(volume.capacity * 2));
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    scene.call_ok(volume.expand(&target, volume.capacity * 2));
    assert!(blocks(&target) > volume.capacity);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_read_only_volume_does_not_grow() {
    let scene = Scene::new();
    let mut volume = scene.staged("pv", filesystem("xfs"));
    scene.unpublish_and_unstage(&volume, &[]);
    volume.capability.access_mode.as_mut().unwrap().mode = Mode::SingleNodeReaderOnly.into();
    scene.call_ok(volume.stage());
    let larger = volume.capacity * 2;
    scene.call_ok(volume.grow(larger));
    let modified = || {
        let image = fs::metadata(scene.image(&volume.id));
        image.unwrap().modified().unwrap()
    };
    let before = modified();
    expect_error(
        scene.call(volume.expand(&volume.staging, larger)),
        Code::FailedPrecondition,
    );
    assert_eq!(modified(), before);
    let target = scene.publish(&volume, "pod");
    expect_error(
        scene.call(volume.expand(&target, larger)),
        Code::FailedPrecondition,
    );
    scene.remove_volume(&volume, &[&target]);
}
