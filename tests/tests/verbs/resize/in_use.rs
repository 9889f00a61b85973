//! Growing a mounted volume.

use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::{fsck, mkfs};
use runcrust_tests::writer::{WRITER, assert_no_line_missing, wait_for_lines};
use runcrust_tests::{
    Delegate, LoopDevice, Node, POD, Run, StagedVolume, host, on_each_delegate, process, wait_until,
};

use super::{MIB, capacity, device, device_size, is_recorded, size_in_container, stage_new};
use crate::output::assert_error;

fn grows_under_a_writer(delegate: Delegate, fstype: &'static str) {
    let volume = stage_new(delegate, fstype);
    let (before, after) = (
        device_size(&volume.device),
        device_size(&volume.device) + 256 * MIB,
    );
    let sandbox = volume.sandbox();
    let bundle = volume.app_bundle(&sandbox).script(WRITER);
    let app = volume.run(&bundle.write());
    let one = wait_for_lines(&app, 3);
    let sum = app.sh(
        "dd if=/dev/urandom of=/data/file bs=1M count=4 2>/dev/null; busybox md5sum /data/file",
    );
    let size_before = size_in_container(&app, "/data");
    assert_eq!(
        capacity(volume.resize(0, 0)),
        before,
        "the device has not grown yet"
    );

    volume.device.set_size(after);
    let two = wait_for_lines(&app, one);
    assert_eq!(capacity(volume.resize(after, 0)), after);
    wait_for_lines(&app, two);
    let size_after = size_in_container(&app, "/data");
    assert!(
        size_after >= size_before + 200 * MIB,
        "{size_before} became {size_after}"
    );
    assert_eq!(capacity(volume.resize(after, 0)), after, "a second time");
    assert_eq!(size_in_container(&app, "/data"), size_after);
    // This file would not have fitted before the growth.
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

/// Only the app is left, and it sees a subdirectory of the volume.
fn grows_through_an_app(delegate: Delegate, fstype: &'static str) {
    let volume = stage_new(delegate, fstype);
    let sandbox = volume.sandbox();
    let app = volume
        .node
        .app(&sandbox, &volume.target.join("sub"), "/data/deep");
    process::kill_now(sandbox.pid());
    wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
    let (before, after) = (
        device_size(&volume.device),
        device_size(&volume.device) + 256 * MIB,
    );
    volume.device.set_size(after);
    assert_eq!(capacity(volume.resize(after, 0)), after);
    assert!(size_in_container(&app, "/data/deep") > before);
    app.end();
    volume.device.wait_until_free(WAIT_TIMEOUT);
}

on_each_delegate! {
    fn xfs_grows_while_the_workload_writes(delegate: Delegate) {
        grows_under_a_writer(delegate, "xfs");
    }

    fn btrfs_grows_while_the_workload_writes(delegate: Delegate) {
        grows_under_a_writer(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn ext4_grows_while_the_workload_writes(delegate: Delegate) {
        grows_under_a_writer(delegate, "ext4");
    }

    fn xfs_grows_through_an_app_without_its_sandbox(delegate: Delegate) {
        grows_through_an_app(delegate, "xfs");
    }

    fn btrfs_grows_through_an_app_without_its_sandbox(delegate: Delegate) {
        grows_through_an_app(delegate, "btrfs");
    }

    /// The ioctl that sets the size also sets the maximum percentage of inodes.
    fn xfs_keeps_its_maximum_percentage_of_inodes(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        mkfs("xfs", device.path(), &["-i", "maxpct=7"]);
        let volume = StagedVolume::on_device(node, device, &[]);
        let sandbox = volume.sandbox();
        volume.device.set_size(512 * MIB);
        assert_eq!(capacity(volume.resize(0, 0)), 512 * MIB);
        sandbox.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let mut xfs_db = Command::new("xfs_db");
        xfs_db.args(["-r", "-c", "sb 0", "-c", "print imax_pct"]).arg(volume.device.path());
        assert_eq!(Run::capture(&mut xfs_db).success().stdout, "imax_pct = 7\n");
    }

    /// The file system grows, whichever mount of it the resize goes through, and whether that is read-only or not.
    fn a_volume_grows_through_a_read_only_mount(delegate: Delegate) {
        let volume = stage_new(delegate, "xfs");
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
        assert!(size_in_container(&reader, "/data") > 400 * MIB && !is_recorded(&volume.entry()));
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
        let volume = StagedVolume::on_device(node, device, &["--option", "ro"]);
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

    /// setpriv drops the capability, for machines on which the test has it.
    fn growing_ext4_without_its_capability_names_it(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = LoopDevice::ext4(node.dir(), 64);
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let _sandbox = node.sandbox("pod-a");
        let without = |min: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "--"]);
            command.arg(node.handler().path()).args(["crust", "resize", utf8(&target), min, "0"]);
            Run::capture(&mut command)
        };
        assert_eq!(capacity(without("0")), 64 * MIB, "no growth is needed");
        device.set_size(96 * MIB);
        let names = ["pv-1", utf8(device.path()), "EPERM", "CAP_SYS_RESOURCE"];
        assert_error(without("0"), "FAILED_PRECONDITION", &names);
        assert_error(without("100000000"), "FAILED_PRECONDITION", &names);
    }

    fn a_file_system_that_cannot_grow_online_is_unimplemented(delegate: Delegate) {
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
        assert_eq!(size_in_container(&app, "/data"), 512 * MIB);
        assert_eq!(capacity(node.resize(&two, 512 * MIB, 0)), 512 * MIB);
        assert!(host::mounts_of_device(device.path()).is_empty());
    }
}
