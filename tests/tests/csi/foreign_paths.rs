//! `NodeUnpublishVolume` with a path that is not the volume's. The call removes and moves files as root, and only gets
//! a path.

use std::fs;

use crust_proto::csi::v1::NodeUnpublishVolumeRequest;
use runcrust_tests::csi::{CsiVolume, block, filesystem, mount_of};
use runcrust_tests::node::utf8;
use runcrust_tests::{
    Csi, Delegate, LoopDevice, Node, POD, host, loopdev, mounts, retry_lost_race,
};
use tonic::Code;

use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error, publish_request};

const OTHER_POD: &str = "34343434-1111-2222-3333-000000000001";

#[test]
fn a_directory_that_is_no_target_is_left_alone() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    let data = node.dir().subdir("data");
    fs::write(data.join("file"), "the host's").unwrap();
    let empty = node.dir().subdir("empty");
    for path in [
        data.clone(),
        empty.clone(),
        data.join("file"),
        node.dir().join("none"),
    ] {
        csi.call(volume.unpublish(&path)).unwrap();
    }
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "the host's");
    assert!(empty.exists());
    for wrong in [
        format!("{}/../data", utf8(&empty)),
        "/".to_owned(),
        "data".to_owned(),
    ] {
        let request = NodeUnpublishVolumeRequest {
            target_path: wrong,
            ..volume.unpublish(&empty)
        };
        let error = expect_error(csi.call(request), Code::InvalidArgument);
        assert!(error.contains("target_path"), "{error}");
    }
}

#[test]
fn a_foreign_mount_at_a_target_stays() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    let target = csi.target(POD, "pv-1");
    fs::create_dir(&target).unwrap();
    mounts::tmpfs(&target);
    fs::write(target.join("file"), "somebody's").unwrap();
    for staged in [false, true] {
        if staged {
            csi.call(volume.stage()).unwrap();
        }
        let error = expect_error(
            csi.call(volume.unpublish(&target)),
            Code::FailedPrecondition,
        );
        assert!(error.contains("tmpfs (none) is mounted there"), "{error}");
    }
    let error = expect_error(csi.call(volume.publish(&target)), Code::FailedPrecondition);
    assert!(error.contains("tmpfs (none) is mounted there"), "{error}");
    let error = expect_error(
        csi.call(deferred_publish_request(&volume, &target)),
        Code::FailedPrecondition,
    );
    assert!(error.contains("tmpfs (none) is mounted there"), "{error}");
    assert_eq!(
        fs::read_to_string(target.join("file")).unwrap(),
        "somebody's"
    );
}

#[test]
fn a_target_of_another_volume_is_refused() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let [one, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let [plain, deferred] = [csi.target(POD, "pv-1"), csi.target(OTHER_POD, "pv-1")];
    for volume in [&one, &other] {
        csi.call(volume.stage()).unwrap();
    }
    csi.call(one.publish(&plain)).unwrap();
    let error = expect_error(csi.call(other.unpublish(&plain)), Code::FailedPrecondition);
    assert!(error.contains(&one.id), "{error}");
    let error = expect_error(csi.call(other.publish(&plain)), Code::FailedPrecondition);
    assert!(error.contains(&one.id), "{error}");
    assert_eq!(host::mounts_of_device(&csi.device(&one.id)).len(), 1);
    csi.call(one.unpublish(&plain)).unwrap();

    csi.call(deferred_publish_request(&one, &deferred)).unwrap();
    let error = expect_error(
        csi.call(other.unpublish(&deferred)),
        Code::FailedPrecondition,
    );
    assert!(error.contains(&one.id), "{error}");
    assert!(node.entry(&deferred).exists(), "still staged");
    csi.call(one.unpublish(&deferred)).unwrap();
}

#[test]
fn a_deferred_target_of_another_volume_is_refused() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let [one, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let target = csi.target(POD, "pv-1");
    for volume in [&one, &other] {
        csi.call(volume.stage()).unwrap();
    }
    csi.call(deferred_publish_request(&one, &target)).unwrap();
    let staged = fs::read(node.entry(&target).join("mountInfo.json")).unwrap();
    let error = expect_error(
        csi.call(deferred_publish_request(&other, &target)),
        Code::FailedPrecondition,
    );
    assert!(error.contains(&one.id), "{error}");
    assert_eq!(
        fs::read(node.entry(&target).join("mountInfo.json")).unwrap(),
        staged
    );
    csi.call(one.unpublish(&target)).unwrap();
    csi.call(deferred_publish_request(&other, &target)).unwrap();
    csi.call(other.unpublish(&target)).unwrap();
}

#[test]
fn an_impossible_target_does_no_harm() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    csi.call(volume.stage()).unwrap();
    let file = node.dir().join("file");
    fs::write(&file, "").unwrap();
    let impossible = [
        file.join("mount"),
        csi.target(POD, "pv-1").with_file_name("x".repeat(300)),
        node.dir().join("none/mount"),
    ];
    for target in &impossible {
        csi.call(volume.publish(target))
            .expect_err("an impossible target");
    }
    let target = csi.target(POD, "pv-1");
    csi.call(volume.publish(&target)).unwrap();
    for target in &impossible {
        csi.call(volume.unpublish(target)).unwrap();
    }
    csi.call(volume.unpublish(&target)).unwrap();
    csi.call(volume.unstage()).unwrap();
    csi.call(volume.delete()).unwrap();
}

#[test]
fn files_below_a_target_path_are_left_alone() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    let below = csi.target(POD, "pv-1").join("directory");
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("file"), "data").unwrap();
    csi.call(volume.unpublish(&below)).unwrap();
    assert_eq!(fs::read_to_string(below.join("file")).unwrap(), "data");
    assert!(!node.handler().kubelet_dir().join("pods/plugins").exists());
}

/// The device was detached by hand, or the image was unlinked.
#[test]
fn a_volume_without_its_device_can_be_removed() {
    let (_node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let deferred = csi.volume("pv-1", filesystem("ext4"));
    csi.call(deferred.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(deferred_publish_request(&deferred, &target))
        .unwrap();
    let device = csi.device(&deferred.id);
    loopdev::detach(&device);
    let unstaged = csi.call(deferred.unstage());
    // Another test may have got the device's number by now.
    if LoopDevice::is_idle(&device) {
        let error = expect_error(unstaged, Code::FailedPrecondition);
        assert!(error.contains("it is published"), "{error}");
    }
    csi.call(deferred.unpublish(&target)).unwrap();
    csi.call(deferred.unstage()).unwrap();

    let raw = csi.volume("pv-2", block());
    csi.call(raw.stage()).unwrap();
    let device_node = csi.target(POD, "pv-2");
    csi.call(raw.publish(&device_node)).unwrap();
    loopdev::detach(&csi.device(&raw.id));
    csi.call(raw.unpublish(&device_node)).unwrap();
    assert!(!device_node.exists());
    csi.call(raw.unstage()).unwrap();

    let plain = csi.volume("pv-3", filesystem("ext4"));
    csi.call(plain.stage()).unwrap();
    let mounted = csi.target(POD, "pv-3");
    csi.call(plain.publish(&mounted)).unwrap();
    let device = csi.device(&plain.id);
    fs::remove_file(csi.image(&plain.id)).unwrap();
    expect_error(csi.call(plain.delete()), Code::FailedPrecondition);
    csi.call(plain.unpublish(&mounted)).unwrap();
    csi.call(plain.unstage()).unwrap();
    csi.call(plain.delete()).unwrap();
    // The driver no longer finds this device by the image's name, so an administrator would have to detach it.
    loopdev::detach(&device);
}

/// The target is only a device node and contains no data, so it is removed whatever is attached to the device by now.
#[test]
fn a_block_volume_whose_device_was_reused_can_be_unpublished() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let raw = csi.volume("pv-1", block());
    let target = csi.target(POD, "pv-1");
    let other = node.dir().join("other.img");
    fs::File::create(&other).unwrap().set_len(1 << 20).unwrap();
    let _other = retry_lost_race(|| {
        csi.call(raw.stage()).unwrap();
        csi.call(raw.publish(&target)).unwrap();
        let device = csi.device(&raw.id);
        loopdev::detach(&device);
        let taken = LoopDevice::at(&device, &other);
        if taken.is_none() {
            csi.call(raw.unpublish(&target)).unwrap();
        }
        taken
    });
    csi.call(raw.unpublish(&target)).unwrap();
    assert!(!target.exists());
    csi.call(raw.unstage()).unwrap();
    csi.call(raw.delete()).unwrap();
}

/// A backup may attach the image, for example.
#[test]
fn an_image_attached_by_others_does_not_delay_pods() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    csi.call(volume.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(volume.publish(&target)).unwrap();
    let backup = LoopDevice::read_only_on(&csi.image(&volume.id));
    csi.call(volume.unpublish(&target)).unwrap();
    assert!(!target.exists());
    let error = expect_error(csi.call(volume.unstage()), Code::Internal);
    assert!(error.contains("may only be attached to one"), "{error}");
    drop(backup);
    csi.call(volume.unstage()).unwrap();
}

/// The record of the failed publish does not claim the mount of another volume.
#[test]
fn a_failed_publish_does_not_claim_another_volume() {
    let (node, ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let mut capability = filesystem("ext4");
    mount_of(&mut capability).mount_flags = vec!["bogus=1".to_owned()];
    let failing = csi.volume("pv-1", capability);
    let other = csi.volume("pv-2", filesystem("ext4"));
    for volume in [&failing, &other] {
        csi.call(volume.stage()).unwrap();
    }
    let target = csi.target(POD, "pv");
    for deferred in [false, true] {
        let publish = |volume: &CsiVolume| publish_request(volume, &target, deferred);
        if deferred {
            ops.kill();
        }
        csi.call(publish(&failing))
            .expect_err("an impossible target");
        if deferred {
            ops.spawn(ops.command());
        }
        csi.call(publish(&other)).unwrap();
        let state = || {
            let staged = fs::read(node.entry(&target).join("mountInfo.json")).ok();
            (staged, host::mounts_of_device(&csi.device(&other.id)))
        };
        let before = state();
        expect_error(
            csi.call(failing.unpublish(&target)),
            Code::FailedPrecondition,
        );
        assert_eq!(state(), before, "deferred: {deferred}");
        csi.call(failing.unstage())
            .expect("the volume is not published");
        csi.call(failing.stage()).unwrap();
        csi.call(other.unpublish(&target)).unwrap();
    }
}

/// The volume was published. A reboot has removed its mount, and its image was lost, but its record still exists.
#[test]
fn a_lost_volume_does_not_claim_its_replacement() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let target = csi.target(POD, "pv");
    for deferred in [false, true] {
        let publish = |volume: &CsiVolume| publish_request(volume, &target, deferred);
        let [lost, other] = ["lost", "other"]
            .map(|name| csi.volume(&format!("{name}-{deferred}"), filesystem("ext4")));
        csi.call(lost.stage()).unwrap();
        csi.call(publish(&lost)).unwrap();
        csi.simulate_reboot();
        if deferred {
            fs::remove_dir_all(node.handler().crust_root()).unwrap();
        }
        fs::remove_file(csi.image(&lost.id)).unwrap();
        csi.spawn(csi.command(&[]));
        csi.call(other.stage()).unwrap();
        csi.call(publish(&other)).unwrap();
        csi.call(other.unpublish(&target)).unwrap();
        assert!(
            !target.exists() && !node.entry(&target).exists(),
            "deferred: {deferred}"
        );
        csi.call(other.unstage()).unwrap();
        csi.call(lost.unpublish(&target)).unwrap();
        csi.call(lost.unstage()).unwrap();
    }
}
