//! Other ways for a container to come to its volume than a pod's sandbox, on each file system.

use std::fs;
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{
    Bundle, Container, LoopDevice, MountWatcher, Node, POD, StagedVolume, on_each_delegate,
    on_each_file_system,
};

const FIRST: u32 = 200_000;

fn plain(node: &Node, source: &Path) -> Bundle {
    Bundle::plain(node.dir()).bind(source, "/data", &[])
}

/// The container ends, and what it wrote is there.
fn ends(node: &Node, container: &Container, device: &LoopDevice, target: &Path) {
    let _ = container.sh("echo hello > /data/file");
    container.stop();
    let _ = container.delete().success();
    device.wait_until_free(WAIT_TIMEOUT);
    let _ = node.unstage(target).success();
    fsck(device.fstype(), device.path());
    let file = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
    assert_eq!(file, b"hello\n");
}

on_each_file_system! {
    fn a_plain_bundle_has_it_to_itself(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let volume = StagedVolume::of(node, device, &["--fs-group", "4242"]);
        let watcher = MountWatcher::start(volume.device.path());
        let container = volume.run(&volume.plain_bundle().bind(volume.target.join("a/b"), "/b", &[]).write());
        let _ = container.sh("echo sub > /b/file");
        assert_eq!(container.sh("cat /data/a/b/file; stat -c '%g %a' /data/a"), "sub\n4242 2775");
        watcher.assert_never_mounted();
        ends(&volume, &container, &volume.device, &volume.target);
    }

    fn a_containers_own_hook_mounts_it(delegate: Delegate, fstype: &'static str) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let device = node.formatted(fstype);
        let volume = StagedVolume::of(node, device, &["--fs-group", "4242"]);
        let bundle = volume.plain_bundle().write();
        // The hook makes no mountpoints.
        fs::create_dir(bundle.rootfs().join("data")).unwrap();
        let container = volume.run(&bundle);
        assert_eq!(container.sh("stat -c '%g %a' /data"), "4242 2775");
        ends(&volume, &container, &volume.device, &volume.target);
    }
}

/// A container in a user namespace, where the kernel can show the file system's owners so.
fn in_a_user_namespace(node: &Node, device: &LoopDevice, fstype: &str) {
    let target = node.target(POD, "pv-1");
    let options = ["--fs-group", "4242"];
    let _ = node
        .try_stage_as(fstype, &target, device.path(), &options)
        .success();
    let bundle = plain(node, &target).user_namespace(FIRST, None);
    let container = node.run(&bundle.write());
    let owners = "echo x > /data/own; chown 7:8 /data/own; stat -c '%u:%g' /data /data/own";
    assert_eq!(container.sh(owners), "0:4242\n7:8");
    ends(node, &container, device, &target);
}

on_each_delegate! {
    fn a_user_namespace_sees_its_own_ids_on_xfs(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "xfs");
        in_a_user_namespace(&node, &device, "xfs");
    }

    fn a_user_namespace_sees_its_own_ids_on_btrfs(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "btrfs");
        in_a_user_namespace(&node, &device, "btrfs");
    }

    /// The driver is the same, and can only do it under its own name.
    fn a_user_namespace_takes_an_ext3_that_is_staged_as_ext4(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "ext3");
        let volume = StagedVolume::of(node, device, &[]);
        let bundle = volume.plain_bundle().user_namespace(FIRST, None);
        let container = volume.container(&bundle.write());
        let sentence = container.expect_refusal();
        assert!(sentence.starts_with("volume pv-1: mount_setattr(MOUNT_ATTR_IDMAP): EINVAL: the container has a user namespace"), "{sentence}");
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.unstage().success();
        in_a_user_namespace(&volume, &volume.device, "ext4");
    }
}
