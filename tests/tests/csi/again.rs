//! The same request once more: of a driver that was restarted with other features, or to which something
//! happened meanwhile. kubelet asks so after its own restart, with the pod running.

use std::fs;
use std::process::Command;

use crust_proto::csi::v1::{CreateVolumeRequest, NodePublishVolumeRequest};
use runcrust_tests::csi::{CsiVolume, block, create_request, filesystem, mount_of};
use runcrust_tests::{Csi, Delegate, Node, POD, Run, host, loopdev};
use tonic::Code;

use crate::scene::deferral;
use crate::{deferring, publishing, refused};

const OTHER_POD: &str = "45454545-1111-2222-3333-000000000001";
const DEFER: [&str; 2] = ["--without", "DEFER_FS_OPS"];
const GROUP: [&str; 2] = ["--without", "VOLUME_MOUNT_GROUP"];
const POLICY: [&str; 2] = [
    "--without",
    "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY",
];

/// A driver of some features publishes, one of others is asked the same, and takes the volume back.
fn of_both(first: &[&str], then: &[&str], volume: impl Fn(&Csi) -> CsiVolume, is_deferred: bool) {
    let (node, _ops, csi) = deferral(Delegate::Runc, first);
    let volume = volume(&csi);
    let target = csi.target(POD, "pv-1");
    let request = publishing(&volume, &target, is_deferred);
    csi.call(volume.stage()).unwrap();
    csi.call(request.clone()).unwrap();
    let what = format!("{first:?}, then {then:?}");
    let seen = || {
        let staged = fs::read(node.entry(&target).join("mountInfo.json")).ok();
        (staged, host::mounts_of_device(&csi.device(&volume.id)))
    };
    let before = seen();
    csi.restart(then);
    csi.call(volume.stage()).expect(&what);
    csi.call(request).expect(&what);
    assert_eq!(seen(), before, "{what}: what is there stays");
    csi.call(volume.unpublish(&target)).expect(&what);
    csi.call(volume.unstage()).expect(&what);
}

#[test]
fn a_published_volume_survives_an_upgrade_and_a_downgrade() {
    let plain = |csi: &Csi| csi.volume("pv-1", filesystem("ext4"));
    let stock = |csi: &Csi| {
        let mut request: CreateVolumeRequest = create_request("pv-1", filesystem("ext4"));
        let parameter = ("crust.dev/defer".to_owned(), "true".to_owned());
        request.parameters.extend([parameter]);
        csi.create_volume(request)
    };
    for (first, then) in [(&DEFER[..], &[][..]), (&[], &DEFER)] {
        of_both(first, then, plain, true);
        of_both(first, then, stock, false);
    }
}

#[test]
fn a_group_unknown_to_an_older_driver_is_the_same_request() {
    let grouped = |csi: &Csi| {
        let mut volume = csi.volume("pv-1", filesystem("ext4"));
        let mount = mount_of(&mut volume.capability);
        mount.volume_mount_group = "1000".to_owned();
        mount.volume_supplemental_group = "1000".to_owned();
        mount.volume_supplemental_group_change_policy = "OnRootMismatch".to_owned();
        volume
    };
    for (first, then) in [(&GROUP[..], &[][..]), (&[], &GROUP)] {
        of_both(first, then, grouped, false);
        of_both(first, then, grouped, true);
    }
    for (first, then) in [(&POLICY[..], &[][..]), (&[], &POLICY)] {
        of_both(first, then, grouped, true);
    }
}

/// Two pods of the node have it: each of them is asked for again.
#[test]
fn a_second_pod_changes_nothing_of_that() {
    for (first, then) in [(&DEFER[..], &[][..]), (&[], &DEFER)] {
        let (_node, _ops, csi) = deferral(Delegate::Runc, first);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        csi.call(volume.stage()).unwrap();
        let targets = [POD, OTHER_POD].map(|pod| csi.target(pod, "pv-1"));
        for target in &targets {
            csi.call(deferring(&volume, target)).unwrap();
        }
        csi.restart(then);
        for target in &targets {
            csi.call(deferring(&volume, target)).expect("again");
        }
        for target in &targets {
            csi.call(volume.unpublish(target)).unwrap();
        }
        csi.call(volume.unstage()).unwrap();
    }
}

/// Or of a driver whose record is an older copy.
#[test]
fn what_is_there_and_not_on_record_is_taken_for_what_it_is() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    for (name, capability) in [("raw", block()), ("plain", filesystem("ext4"))] {
        let volume = csi.volume(name, capability);
        csi.call(volume.stage()).unwrap();
        let record = csi
            .data()
            .join("volumes")
            .join(format!("{}.json", volume.id));
        let older = fs::read(&record).unwrap();
        let target = node.dir().join(name);
        csi.call(volume.publish(&target)).unwrap();
        fs::write(&record, older).unwrap();
        csi.call(volume.publish(&target)).expect("again");
        assert_eq!(host::mounts_below(&target).len(), 1);
        csi.call(volume.unpublish(&target)).unwrap();
        assert_eq!(host::mounts_below(&target).len(), 0);
        csi.call(volume.unstage()).unwrap();
    }
}

/// What was hidden for a while isn't forgotten by whoever couldn't see it.
#[test]
fn one_that_fails_forgets_nothing() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", block());
    csi.call(volume.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(volume.publish(&target)).unwrap();
    let hidden = host::mounts_below(&target).len();
    let _ = Run::of(
        Command::new("mount")
            .args(["--bind", "/dev/null"])
            .arg(&target),
    )
    .success();
    refused(csi.call(volume.publish(&target)), Code::FailedPrecondition);
    nix::mount::umount(&target).unwrap();
    assert_eq!(host::mounts_below(&target).len(), hidden);
    refused(csi.call(volume.unstage()), Code::FailedPrecondition);
    csi.call(volume.unpublish(&target)).unwrap();
    assert!(!target.exists());
    csi.call(volume.unstage()).unwrap();
}

/// Somebody has put a copy in its place, say a backup: the one that is mounted is still the pod's.
#[test]
fn an_image_that_was_replaced_keeps_no_pod_from_its_end() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    csi.call(volume.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(volume.publish(&target)).unwrap();
    let old = csi.device(&volume.id);
    let image = csi.image(&volume.id);
    let copy = image.with_extension("copy");
    let mut cp = Command::new("cp");
    let _ = Run::of(cp.arg("--sparse=always").args([&image, &copy])).success();
    fs::rename(&copy, &image).unwrap();
    let republish: NodePublishVolumeRequest = volume.publish(&target);
    refused(csi.call(republish), Code::FailedPrecondition);
    refused(csi.call(volume.delete()), Code::FailedPrecondition);
    csi.call(volume.unpublish(&target)).unwrap();
    assert_eq!(host::mounts_below(&target).len(), 0);
    csi.call(volume.unstage()).unwrap();
    csi.call(volume.delete()).unwrap();
    // Nothing by its name is attached any more, so that is the administrator's.
    loopdev::detach(&old);
}
