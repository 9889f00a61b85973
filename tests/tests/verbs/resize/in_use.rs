//! A volume that is mounted grows where it is.

use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::{fsck, mkfs};
use runcrust_tests::writer::{WRITER, assert_no_line_missing, wait_for_lines};
use runcrust_tests::{
    Delegate, LoopDevice, Node, POD, Run, StagedVolume, host, on_each_delegate, process, wait_until,
};

use super::{MIB, capacity, device, is_recorded, seen, size, staged};
use crate::answer::assert_error;

fn grows_under_a_writer(delegate: Delegate, fstype: &'static str) {
    let volume = staged(delegate, fstype);
    let (before, after) = (size(&volume.device), size(&volume.device) + 256 * MIB);
    let sandbox = volume.sandbox();
    let bundle = volume.app_bundle(&sandbox).script(WRITER);
    let app = volume.run(&bundle.write());
    let one = wait_for_lines(&app, 3);
    let sum = app.sh(
        "dd if=/dev/urandom of=/data/file bs=1M count=4 2>/dev/null; busybox md5sum /data/file",
    );
    let seen_before = seen(&app, "/data");
    assert_eq!(
        capacity(volume.resize(0, 0)),
        before,
        "there is no more yet"
    );

    volume.device.set_size(after);
    let two = wait_for_lines(&app, one);
    assert_eq!(capacity(volume.resize(after, 0)), after);
    wait_for_lines(&app, two);
    let seen_after = seen(&app, "/data");
    assert!(
        seen_after >= seen_before + 200 * MIB,
        "{seen_before} became {seen_after}"
    );
    assert_eq!(capacity(volume.resize(after, 0)), after, "the same again");
    assert_eq!(seen(&app, "/data"), seen_after);
    // More than there was room for.
    let _ = app.sh(&format!("busybox fallocate -l {before} /data/large"));
    assert_eq!(app.sh("busybox md5sum /data/file"), sum);
    assert!(!is_recorded(&volume.entry()));
    assert_eq!(volume.device.host_mounts(), <[String; 0]>::default());

    assert_no_line_missing(&app);
    app.end();
    sandbox.end();
    volume.device.wait_until_free(WAIT_TIMEOUT);
    fsck(fstype, volume.device.path());
}

/// Only the app is left, and sees a directory of the volume.
fn grows_through_an_app(delegate: Delegate, fstype: &'static str) {
    let volume = staged(delegate, fstype);
    let sandbox = volume.sandbox();
    let app = volume
        .node
        .app(&sandbox, &volume.target.join("sub"), "/data/deep");
    process::kill_now(sandbox.pid());
    wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
    let (before, after) = (size(&volume.device), size(&volume.device) + 256 * MIB);
    volume.device.set_size(after);
    assert_eq!(capacity(volume.resize(after, 0)), after);
    assert!(seen(&app, "/data/deep") > before);
    app.end();
    volume.device.wait_until_free(WAIT_TIMEOUT);
}

on_each_delegate! {
    fn xfs_grows_under_a_workload_that_never_stops_writing(delegate: Delegate) {
        grows_under_a_writer(delegate, "xfs");
    }

    fn btrfs_grows_under_a_workload_that_never_stops_writing(delegate: Delegate) {
        grows_under_a_writer(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn ext4_grows_under_a_workload_that_never_stops_writing(delegate: Delegate) {
        grows_under_a_writer(delegate, "ext4");
    }

    fn xfs_grows_through_an_app_whose_sandbox_has_ended(delegate: Delegate) {
        grows_through_an_app(delegate, "xfs");
    }

    fn btrfs_grows_through_an_app_whose_sandbox_has_ended(delegate: Delegate) {
        grows_through_an_app(delegate, "btrfs");
    }

    /// The share of inodes is set by the same call as the size.
    fn xfs_keeps_its_share_of_inodes(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        mkfs("xfs", device.path(), &["-i", "maxpct=7"]);
        let volume = StagedVolume::of(node, device, &[]);
        let sandbox = volume.sandbox();
        volume.device.set_size(512 * MIB);
        assert_eq!(capacity(volume.resize(0, 0)), 512 * MIB);
        sandbox.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let mut look = Command::new("xfs_db");
        look.args(["-r", "-c", "sb 0", "-c", "print imax_pct"]).arg(volume.device.path());
        assert_eq!(Run::of(&mut look).success().stdout, "imax_pct = 7\n");
    }

    /// Who has it mounted so that it can't be written to is as good as any other: it is the file system that
    /// grows.
    fn it_grows_whoever_can_only_read_it(delegate: Delegate) {
        let volume = staged(delegate, "xfs");
        let sandbox = volume.sandbox();
        let reader = volume.node.app_bundle(&sandbox).bind(&volume.target, "/data", &["rbind", "ro"]);
        let reader = volume.run(&reader.write());
        let writer = volume.app(&sandbox);
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        volume.device.set_size(400 * MIB);
        assert_eq!(capacity(volume.resize(0, 0)), 400 * MIB);
        writer.end();
        volume.device.set_size(480 * MIB);
        assert_eq!(capacity(volume.resize(0, 0)), 480 * MIB);
        assert!(seen(&reader, "/data") > 400 * MIB && !is_recorded(&volume.entry()));
        reader.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.node.stage(POD, "pv-1", &volume.device, &["--read-only"]);
        let sandbox = volume.sandbox();
        volume.device.set_size(512 * MIB);
        assert_eq!(capacity(volume.resize(0, 0)), 512 * MIB);
        sandbox.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
    }

    fn a_read_only_volume_does_not_grow(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        let volume = StagedVolume::of(node, device, &["--option", "ro"]);
        volume.device.set_size(400 * MIB);
        let refused = || {
            let names = ["pv-1", "read-only"];
            assert_error(volume.resize(0, 0), "FAILED_PRECONDITION", &names);
            assert!(!is_recorded(&volume.entry()));
        };
        refused();
        let _sandbox = volume.sandbox();
        refused();
    }

    /// Also where the capability isn't missing anyway.
    fn ext4_needs_a_capability_and_says_which(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = LoopDevice::ext4(node.dir(), 64);
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let _sandbox = node.sandbox("pod-a");
        let without = |min: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "--"]);
            command.arg(node.handler().path()).args(["crust", "resize", utf8(&target), min, "0"]);
            Run::of(&mut command)
        };
        assert_eq!(capacity(without("0")), 64 * MIB, "where nothing is to be done");
        device.set_size(96 * MIB);
        let names = ["pv-1", utf8(device.path()), "EPERM", "CAP_SYS_RESOURCE"];
        assert_error(without("0"), "FAILED_PRECONDITION", &names);
        assert_error(without("100000000"), "FAILED_PRECONDITION", &names);
    }

    fn what_cannot_grow_while_it_is_mounted_is_unimplemented(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = LoopDevice::new(node.dir(), 64);
        mkfs("ext3", device.path(), &["-O", "^resize_inode"]);
        let target = node.target("pod-a", "pv-1");
        let _ = node.try_stage_as("ext3", &target, device.path(), &[]).success();
        device.set_size(96 * MIB);
        let refused = || {
            let names = ["pv-1", "ext3", utf8(device.path()), "resize2fs"];
            assert_error(node.resize(&target, 0, 0), "UNIMPLEMENTED", &names);
            assert!(!is_recorded(&node.entry(&target)));
        };
        refused();
        let _sandbox = node.sandbox("pod-a");
        refused();
    }

    fn two_pods_that_share_a_device_grow_it_once(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "btrfs");
        let one = node.stage("pod-a", "pv-1", &device, &[]);
        let two = node.stage("pod-b", "pv-1", &device, &[]);
        let (_a, b) = (node.sandbox("pod-a"), node.sandbox("pod-b"));
        let app = node.app(&b, &two, "/data");
        device.set_size(512 * MIB);
        assert_eq!(capacity(node.resize(&one, 512 * MIB, 0)), 512 * MIB);
        assert_eq!(seen(&app, "/data"), 512 * MIB);
        assert_eq!(capacity(node.resize(&two, 512 * MIB, 0)), 512 * MIB);
        assert!(host::mounts_of_device(device.path()).is_empty());
    }
}
