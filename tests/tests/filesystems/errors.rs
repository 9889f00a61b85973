//! Volumes that cannot be mounted: the create of the container fails with one sentence that has the volume, the device,
//! the call and a hint. (The tests of crates/blockfs cover each error of the mount API.)

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{Delegate, LoopDevice, Node, Pod, Run, on_each_delegate};

/// Asserts that an app with the volume is refused, with an error that contains `names`, the volume once, and one hint.
#[track_caller]
fn expect_refusal(node: &Node, device: &LoopDevice, options: &[&str], names: &[&str]) -> String {
    let pod = Pod::new(node, "pod-a", device, options);
    assert!(!pod.has(device));
    let sentence = pod.expect_refusal();
    assert_contains(&sentence, names);
    assert!(sentence.starts_with("volume pv-1: "), "{sentence}");
    assert_eq!(sentence.matches("pv-1").count(), 1, "{sentence}");
    assert_eq!(sentence.matches("hint: ").count(), 1, "{sentence}");
    assert!(sentence.contains(utf8(device.path())), "{sentence}");
    pod.assert_target_empty();
    pod.end([]);
    let _ = node.unstage(&pod.target).success();
    assert!(device.is_free());
    sentence
}

fn assert_bad_option_refused(delegate: Delegate, fstype: &'static str) {
    let (node, device) = Node::with_formatted(delegate, fstype);
    let names = ["fsconfig(", "EINVAL", fstype, "nonsense"];
    let _ = expect_refusal(&node, &device, &["--option", "noatime,nonsense"], &names);
}

on_each_delegate! {
    fn a_device_without_a_file_system_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = LoopDevice::new(node.dir(), 32);
        let names = ["fsconfig(", "EINVAL", "no file system", "runcrust never does", "CSI driver", "lsblk"];
        let _ = expect_refusal(&node, &device, &[], &names);
    }

    fn another_file_system_than_staged_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "xfs");
        let target = node.target("pod-a", "pv-1");
        let _ = node.try_stage_as("ext4", &target, device.path(), &[]).success();
        let sandbox = node.sandbox("pod-a");
        let app = node.container(&node.app_bundle(&sandbox).bind(&target, "/data", &[]).write());
        let sentence = app.expect_refusal();
        let device = utf8(device.path());
        let expected = format!(
            "volume pv-1: fsconfig(\"{device}\", ext4, create): EINVAL: the device holds xfs, not \
             ext4; hint: set the volume's fsType to xfs, or check that this is its device"
        );
        assert_eq!(sentence, expected);
    }

    fn a_bad_option_of_ext4_is_refused(delegate: Delegate) {
        assert_bad_option_refused(delegate, "ext4");
    }

    fn a_bad_option_of_xfs_is_refused(delegate: Delegate) {
        assert_bad_option_refused(delegate, "xfs");
    }

    fn a_bad_option_of_btrfs_is_refused(delegate: Delegate) {
        assert_bad_option_refused(delegate, "btrfs");
    }

    fn a_file_system_with_a_wrong_checksum_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "ext4");
        let image = File::options().write(true).open(device.file()).unwrap();
        // A byte of the label, which is covered by the superblock's checksum.
        image.write_all_at(b"X", 0x400 + 0x78).unwrap();
        let _ = expect_refusal(&node, &device, &[], &["EBADMSG", "checksum", "fsck"]);
    }

    fn a_corrupt_file_system_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "xfs");
        let mut command = Command::new("xfs_db");
        command.args(["-x", "-c", "inode 128", "-c", "write -d core.mode 0100644"]);
        let _ = Run::capture(command.arg(device.file())).success();
        let _ = expect_refusal(&node, &device, &[], &["EUCLEAN", "corrupt", "xfs_repair"]);
    }

    fn a_read_only_device_needs_a_read_only_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        for fstype in ["ext4", "xfs", "btrfs"] {
            let formatted = node.formatted(fstype);
            let device = LoopDevice::read_only_on(formatted.file());
            let _ = expect_refusal(&node, &device, &[], &["EACCES", "read-only", "mark the volume"]);
            let pod = Pod::new(&node, "pod-a", &device, &["--read-only"]);
            let _ = pod.app();
            pod.end([]);
            let _ = node.unstage(&pod.target).success();
        }
    }

    fn a_btrfs_on_several_devices_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.formatted("btrfs"), LoopDevice::new(node.dir(), 128));
        let mut command = Command::new("mkfs.btrfs");
        command.args(["-q", "-f", "-m", "raid1"]);
        let _ = Run::capture(command.args([device.path(), other.path()])).success();
        let _ = expect_refusal(&node, &device, &[], &["btrfs on", "2 devices"]);
    }
}
