//! `NodeUnpublishVolume` of what isn't the volume's: it removes and moves as root, and is told a path.

use std::fs;

use crust_proto::csi::v1::NodeUnpublishVolumeRequest;
use runcrust_tests::csi::{CsiVolume, block, filesystem, mount_of};
use runcrust_tests::node::utf8;
use runcrust_tests::{
    Csi, Delegate, LoopDevice, Node, POD, host, loopdev, mounts, retry_lost_race,
};
use tonic::Code;

use crate::scene::deferral;
use crate::{deferring, publishing, refused};

const OTHER_POD: &str = "34343434-1111-2222-3333-000000000001";

#[test]
fn a_directory_that_is_nobodys_target_is_left_alone() {
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
        let error = refused(csi.call(request), Code::InvalidArgument);
        assert!(error.contains("target_path"), "{error}");
    }
}

#[test]
fn what_else_is_mounted_at_a_target_stays() {
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
        let error = refused(
            csi.call(volume.unpublish(&target)),
            Code::FailedPrecondition,
        );
        assert!(error.contains("tmpfs (none) is mounted there"), "{error}");
    }
    let error = refused(csi.call(volume.publish(&target)), Code::FailedPrecondition);
    assert!(error.contains("tmpfs (none) is mounted there"), "{error}");
    let error = refused(
        csi.call(deferring(&volume, &target)),
        Code::FailedPrecondition,
    );
    assert!(error.contains("tmpfs (none) is mounted there"), "{error}");
    assert_eq!(
        fs::read_to_string(target.join("file")).unwrap(),
        "somebody's"
    );
}

#[test]
fn another_volumes_target_is_its_own() {
    let (node, _ops, csi) = deferral(Delegate::Runc, &[]);
    let [one, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let [plain, deferred] = [csi.target(POD, "pv-1"), csi.target(OTHER_POD, "pv-1")];
    for volume in [&one, &other] {
        csi.call(volume.stage()).unwrap();
    }
    csi.call(one.publish(&plain)).unwrap();
    let error = refused(csi.call(other.unpublish(&plain)), Code::FailedPrecondition);
    assert!(error.contains(&one.id), "{error}");
    let error = refused(csi.call(other.publish(&plain)), Code::FailedPrecondition);
    assert!(error.contains(&one.id), "{error}");
    assert_eq!(host::mounts_of_device(&csi.device(&one.id)).len(), 1);
    csi.call(one.unpublish(&plain)).unwrap();

    csi.call(deferring(&one, &deferred)).unwrap();
    let error = refused(
        csi.call(other.unpublish(&deferred)),
        Code::FailedPrecondition,
    );
    assert!(error.contains(&one.id), "{error}");
    assert!(node.entry(&deferred).exists(), "it is staged still");
    csi.call(one.unpublish(&deferred)).unwrap();
}

#[test]
fn another_volumes_deferred_target_is_not_given_out_again() {
    let (node, _ops, csi) = deferral(Delegate::Runc, &[]);
    let [one, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let target = csi.target(POD, "pv-1");
    for volume in [&one, &other] {
        csi.call(volume.stage()).unwrap();
    }
    csi.call(deferring(&one, &target)).unwrap();
    let staged = fs::read(node.entry(&target).join("mountInfo.json")).unwrap();
    let error = refused(
        csi.call(deferring(&other, &target)),
        Code::FailedPrecondition,
    );
    assert!(error.contains(&one.id), "{error}");
    assert_eq!(
        fs::read(node.entry(&target).join("mountInfo.json")).unwrap(),
        staged
    );
    csi.call(one.unpublish(&target)).unwrap();
    csi.call(deferring(&other, &target)).unwrap();
    csi.call(other.unpublish(&target)).unwrap();
}

#[test]
fn a_target_that_cannot_be_breaks_nothing() {
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
        csi.call(volume.publish(target)).expect_err("it can't be");
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
fn what_is_below_a_target_is_left_alone() {
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

/// Whoever detaches it by hand, and whoever unlinks its image.
#[test]
fn a_volume_that_lost_its_device_can_be_given_back() {
    let (_node, _ops, csi) = deferral(Delegate::Runc, &[]);
    let deferred = csi.volume("pv-1", filesystem("ext4"));
    csi.call(deferred.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(deferring(&deferred, &target)).unwrap();
    let device = csi.device(&deferred.id);
    loopdev::detach(&device);
    let unstaged = csi.call(deferred.unstage());
    // Or another test has the number by now.
    if LoopDevice::is_idle(&device) {
        let error = refused(unstaged, Code::FailedPrecondition);
        assert!(error.contains("it is published"), "{error}");
    }
    csi.call(deferred.unpublish(&target)).unwrap();
    csi.call(deferred.unstage()).unwrap();

    let raw = csi.volume("pv-2", block());
    csi.call(raw.stage()).unwrap();
    let node_of_it = csi.target(POD, "pv-2");
    csi.call(raw.publish(&node_of_it)).unwrap();
    loopdev::detach(&csi.device(&raw.id));
    csi.call(raw.unpublish(&node_of_it)).unwrap();
    assert!(!node_of_it.exists());
    csi.call(raw.unstage()).unwrap();

    let plain = csi.volume("pv-3", filesystem("ext4"));
    csi.call(plain.stage()).unwrap();
    let mounted = csi.target(POD, "pv-3");
    csi.call(plain.publish(&mounted)).unwrap();
    let device = csi.device(&plain.id);
    fs::remove_file(csi.image(&plain.id)).unwrap();
    refused(csi.call(plain.delete()), Code::FailedPrecondition);
    csi.call(plain.unpublish(&mounted)).unwrap();
    csi.call(plain.unstage()).unwrap();
    csi.call(plain.delete()).unwrap();
    // Nothing by its name is attached any more, so that is the administrator's.
    loopdev::detach(&device);
}

/// The node of a device is what a pod has, and no data: whatever is attached there by now, it goes.
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

/// A backup, say.
#[test]
fn an_image_attached_by_others_delays_no_pods_end() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    csi.call(volume.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(volume.publish(&target)).unwrap();
    let backup = LoopDevice::read_only_on(&csi.image(&volume.id));
    csi.call(volume.unpublish(&target)).unwrap();
    assert!(!target.exists());
    let error = refused(csi.call(volume.unstage()), Code::Internal);
    assert!(error.contains("by one alone"), "{error}");
    drop(backup);
    csi.call(volume.unstage()).unwrap();
}

/// What it leaves on record is nobody's claim on another volume.
#[test]
fn a_publication_that_failed_is_not_taken_for_another_volumes() {
    let (node, ops, csi) = deferral(Delegate::Runc, &[]);
    let mut capability = filesystem("ext4");
    mount_of(&mut capability).mount_flags = vec!["bogus=1".to_owned()];
    let failing = csi.volume("pv-1", capability);
    let other = csi.volume("pv-2", filesystem("ext4"));
    for volume in [&failing, &other] {
        csi.call(volume.stage()).unwrap();
    }
    let target = csi.target(POD, "pv");
    for deferred in [false, true] {
        let publish = |volume: &CsiVolume| publishing(volume, &target, deferred);
        if deferred {
            ops.kill();
        }
        csi.call(publish(&failing)).expect_err("it can't be");
        if deferred {
            ops.spawn(ops.command());
        }
        csi.call(publish(&other)).unwrap();
        let seen = || {
            let staged = fs::read(node.entry(&target).join("mountInfo.json")).ok();
            (staged, host::mounts_of_device(&csi.device(&other.id)))
        };
        let before = seen();
        refused(
            csi.call(failing.unpublish(&target)),
            Code::FailedPrecondition,
        );
        assert_eq!(seen(), before, "deferred: {deferred}");
        csi.call(failing.unstage()).expect("it is nowhere");
        csi.call(failing.stage()).unwrap();
        csi.call(other.unpublish(&target)).unwrap();
    }
}

/// What a boot has left on record of a volume, whose image was lost besides, is no claim either.
#[test]
fn a_lost_volume_is_not_taken_for_its_replacement() {
    let (node, _ops, csi) = deferral(Delegate::Runc, &[]);
    let target = csi.target(POD, "pv");
    for deferred in [false, true] {
        let publish = |volume: &CsiVolume| publishing(volume, &target, deferred);
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
