//! Repeated requests to a driver that was restarted with other features, or whose volumes were changed in between.
//! kubelet repeats them after its own restart while the pod runs.

use std::fs;
use std::process::Command;

use crust_proto::csi::v1::{CreateVolumeRequest, NodePublishVolumeRequest};
use runcrust_tests::csi::{CsiVolume, block, create_request, filesystem, mount_of};
use runcrust_tests::{Csi, Delegate, Node, POD, Run, host, loopdev};
use tonic::Code;

use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error, publish_request};

const OTHER_POD: &str = "45454545-1111-2222-3333-000000000001";
const WITHOUT_DEFERRAL: [&str; 2] = ["--without", "DEFER_FS_OPS"];
const WITHOUT_MOUNT_GROUP: [&str; 2] = ["--without", "VOLUME_MOUNT_GROUP"];
const WITHOUT_CHANGE_POLICY: [&str; 2] = [
    "--without",
    "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY",
];

/// Publishes with a driver started as `first`, repeats the request to a driver started as `then`, and unpublishes.
fn publish_with_both(
    first: &[&str],
    then: &[&str],
    volume: impl Fn(&Csi) -> CsiVolume,
    is_deferred: bool,
) {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, first);
    let volume = volume(&csi);
    let target = csi.target(POD, "pv-1");
    let request = publish_request(&volume, &target, is_deferred);
    csi.call(volume.stage()).unwrap();
    csi.call(request.clone()).unwrap();
    let what = format!("{first:?}, then {then:?}");
    let state = || {
        let staged = fs::read(node.entry(&target).join("mountInfo.json")).ok();
        (staged, host::mounts_of_device(&csi.device(&volume.id)))
    };
    let before = state();
    csi.restart(then);
    csi.call(volume.stage()).expect(&what);
    csi.call(request).expect(&what);
    assert_eq!(state(), before, "{what}: the volume is unchanged");
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
    for (first, then) in [(&WITHOUT_DEFERRAL[..], &[][..]), (&[], &WITHOUT_DEFERRAL)] {
        publish_with_both(first, then, plain, true);
        publish_with_both(first, then, stock, false);
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
    for (first, then) in [
        (&WITHOUT_MOUNT_GROUP[..], &[][..]),
        (&[], &WITHOUT_MOUNT_GROUP),
    ] {
        publish_with_both(first, then, grouped, false);
        publish_with_both(first, then, grouped, true);
    }
    for (first, then) in [
        (&WITHOUT_CHANGE_POLICY[..], &[][..]),
        (&[], &WITHOUT_CHANGE_POLICY),
    ] {
        publish_with_both(first, then, grouped, true);
    }
}

/// The volume has two pods on the node, and both requests are repeated.
#[test]
fn two_pods_survive_an_upgrade_and_a_downgrade() {
    for (first, then) in [(&WITHOUT_DEFERRAL[..], &[][..]), (&[], &WITHOUT_DEFERRAL)] {
        let (_node, _ops, csi) = deferring_driver(Delegate::Runc, first);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        csi.call(volume.stage()).unwrap();
        let targets = [POD, OTHER_POD].map(|pod| csi.target(pod, "pv-1"));
        for target in &targets {
            csi.call(deferred_publish_request(&volume, target)).unwrap();
        }
        csi.restart(then);
        for target in &targets {
            csi.call(deferred_publish_request(&volume, target))
                .expect("the repeated call");
        }
        for target in &targets {
            csi.call(volume.unpublish(target)).unwrap();
        }
        csi.call(volume.unstage()).unwrap();
    }
}

/// The driver's record is an older copy, from before the publish.
#[test]
fn a_mount_without_a_record_is_recognised() {
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
        csi.call(volume.publish(&target))
            .expect("the repeated call");
        assert_eq!(host::mounts_below(&target).len(), 1);
        csi.call(volume.unpublish(&target)).unwrap();
        assert_eq!(host::mounts_below(&target).len(), 0);
        csi.call(volume.unstage()).unwrap();
    }
}

/// A mount that is hidden below another one stays on record.
#[test]
fn a_failed_repetition_keeps_the_record() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", block());
    csi.call(volume.stage()).unwrap();
    let target = csi.target(POD, "pv-1");
    csi.call(volume.publish(&target)).unwrap();
    let hidden = host::mounts_below(&target).len();
    let _ = Run::capture(
        Command::new("mount")
            .args(["--bind", "/dev/null"])
            .arg(&target),
    )
    .success();
    expect_error(csi.call(volume.publish(&target)), Code::FailedPrecondition);
    nix::mount::umount(&target).unwrap();
    assert_eq!(host::mounts_below(&target).len(), hidden);
    expect_error(csi.call(volume.unstage()), Code::FailedPrecondition);
    csi.call(volume.unpublish(&target)).unwrap();
    assert!(!target.exists());
    csi.call(volume.unstage()).unwrap();
}

/// A copy, say a backup, replaces the image file. The pod keeps the mounted file.
#[test]
fn a_replaced_image_does_not_delay_the_end_of_a_pod() {
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
    let _ = Run::capture(cp.arg("--sparse=always").args([&image, &copy])).success();
    fs::rename(&copy, &image).unwrap();
    let republish: NodePublishVolumeRequest = volume.publish(&target);
    expect_error(csi.call(republish), Code::FailedPrecondition);
    expect_error(csi.call(volume.delete()), Code::FailedPrecondition);
    csi.call(volume.unpublish(&target)).unwrap();
    assert_eq!(host::mounts_below(&target).len(), 0);
    csi.call(volume.unstage()).unwrap();
    csi.call(volume.delete()).unwrap();
    // The driver no longer finds this device by the image's name, so an administrator would have to detach it.
    loopdev::detach(&old);
}
