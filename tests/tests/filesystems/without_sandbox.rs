//! Volumes that are not mounted in a pod's sandbox, or are in a user namespace, on each file system.

use std::fs;
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{
    Bundle, Container, LoopDevice, MountWatcher, Node, POD, StagedVolume, on_each_delegate,
    on_each_file_system,
};

const FIRST: u32 = 200_000;

fn plain_bundle(node: &Node, source: &Path) -> Bundle {
    Bundle::plain(node.dir()).bind(source, "/data", &[])
}

/// Writes a file in the container, ends it, and asserts that the file is on the device.
fn assert_written_at_end(node: &Node, container: &Container, device: &LoopDevice, target: &Path) {
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
    fn a_plain_bundle_has_its_volume(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "4242"]);
        let watcher = MountWatcher::start(volume.device.path());
        let container = volume.run(&volume.plain_bundle().bind(volume.target.join("a/b"), "/b", &[]).write());
        let _ = container.sh("echo sub > /b/file");
        assert_eq!(container.sh("cat /data/a/b/file; stat -c '%g %a' /data/a"), "sub\n4242 2775");
        watcher.assert_never_mounted();
        assert_written_at_end(&volume, &container, &volume.device, &volume.target);
    }

    fn a_hook_mounts_the_volume(delegate: Delegate, fstype: &'static str) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let device = node.formatted(fstype);
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "4242"]);
        let bundle = volume.plain_bundle().write();
        // The hook does not create mountpoints.
        fs::create_dir(bundle.rootfs().join("data")).unwrap();
        let container = volume.run(&bundle);
        assert_eq!(container.sh("stat -c '%g %a' /data"), "4242 2775");
        assert_written_at_end(&volume, &container, &volume.device, &volume.target);
    }
}

/// Asserts that a container in a user namespace sees the ids on the device, with a file system whose mounts can be
/// mapped.
fn assert_ids_in_user_namespace(node: &Node, device: &LoopDevice, fstype: &str) {
    let target = node.target(POD, "pv-1");
    let options = ["--fs-group", "4242"];
    let _ = node
        .try_stage_as(fstype, &target, device.path(), &options)
        .success();
    let bundle = plain_bundle(node, &target).user_namespace(FIRST, None);
    let container = node.run(&bundle.write());
    let owners = "echo x > /data/own; chown 7:8 /data/own; stat -c '%u:%g' /data /data/own";
    assert_eq!(container.sh(owners), "0:4242\n7:8");
    assert_written_at_end(node, &container, device, &target);
}

on_each_delegate! {
    fn a_user_namespace_sees_the_devices_ids_on_xfs(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "xfs");
        assert_ids_in_user_namespace(&node, &device, "xfs");
    }

    fn a_user_namespace_sees_the_devices_ids_on_btrfs(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "btrfs");
        assert_ids_in_user_namespace(&node, &device, "btrfs");
    }

    /// The kernel's driver is the same for both, but maps mounts only under the name ext4.
    fn a_user_namespace_needs_an_ext3_to_be_staged_as_ext4(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "ext3");
        let volume = StagedVolume::on_device(node, device, &[]);
        let bundle = volume.plain_bundle().user_namespace(FIRST, None);
        let container = volume.container(&bundle.write());
        let sentence = container.expect_refusal();
        assert!(sentence.starts_with("volume pv-1: mount_setattr(MOUNT_ATTR_IDMAP): EINVAL: the container has a user namespace"), "{sentence}");
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.unstage().success();
        assert_ids_in_user_namespace(&volume, &volume.device, "ext4");
    }
}
