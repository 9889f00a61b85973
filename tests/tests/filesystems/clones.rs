//! A clone or a restored snapshot of a volume beside its original.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{
    Container, LoopDevice, Node, Pod, Run, on_each_delegate, on_each_file_system,
};

/// Returns the superblock options of the device's mount in the pod's sandbox.
fn superblock_options(pod: &Pod<'_>, device: &LoopDevice) -> String {
    let mounts = device.mounts_of(pod.sandbox.pid());
    let options = mounts.first().and_then(|line| line.rsplit(' ').next());
    options.expect("a mount in the sandbox").to_owned()
}

on_each_delegate! {
    fn an_xfs_clone_is_mounted_beside_its_original_and_logged(delegate: Delegate) {
        let node = Node::logging(delegate);
        let device = node.formatted("xfs");
        with_mounted(device.path(), |root| std::fs::write(root.join("file"), "both\n").unwrap());
        let clone = device.clone_in(node.dir());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let one = a.app();
        assert!(!superblock_options(&a, &device).contains("nouuid"));
        assert!(!node.log().contains("nouuid"), "{}", node.log());

        let b = Pod::new(&node, "pod-b", &clone, &[]);
        let two = b.app();
        assert!(superblock_options(&b, &clone).contains("nouuid"));
        let log = node.log();
        let line = log.lines().find(|line| line.contains("nouuid"));
        let line = line.unwrap_or_else(|| panic!("nouuid is not logged: {log}"));
        assert!(line.contains(utf8(clone.path())), "{line}");
        assert_eq!(two.sh("cat /data/file; echo b > /data/b"), "both");
        let _ = one.exec(&["/bin/ls", "/data/b"]).failure();

        // Further pods join the clone's superblock, whether they request nouuid or not.
        let c = Pod::new(&node, "pod-c", &clone, &[]);
        let d = Pod::new(&node, "pod-d", &clone, &["--option", "nouuid"]);
        let (three, four) = (c.app(), d.app());
        assert_eq!(three.sh("cat /data/b"), "b");
        assert_eq!(four.sh("stat -c %d /data"), two.sh("stat -c %d /data"));

        // The original's pod ends, and starts again while the clone is mounted.
        a.end([one]);
        let _ = node.unstage(&a.target).success();
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let one = a.app();
        assert_eq!(one.sh("cat /data/file"), "both");
        for (pod, app) in [(a, one), (b, two), (c, three), (d, four)] {
            pod.end([app]);
            let _ = node.unstage(&pod.target).success();
        }
        for device in [device, clone] {
            assert!(device.is_free());
            fsck("xfs", device.path());
        }
    }

    fn xfs_clones_staged_with_nouuid_are_mounted(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "xfs");
        let clone = device.clone_in(node.dir());
        let options = ["--option", "nouuid"];
        let a = Pod::new(&node, "pod-a", &device, &options);
        let b = Pod::new(&node, "pod-b", &clone, &options);
        for (pod, device) in [(&a, &device), (&b, &clone)] {
            let app = pod.app();
            let _ = app.sh("echo x > /data/file");
            assert!(superblock_options(pod, device).contains("nouuid"));
        }
    }

    fn a_read_only_xfs_clone_is_mounted_read_only(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "xfs");
        let clone = device.clone_in(node.dir());
        let _a = Pod::new(&node, "pod-a", &device, &[]);
        let b = Pod::new(&node, "pod-b", &clone, &["--option", "ro"]);
        let app = b.app();
        let _ = app.exec(&["/bin/touch", "/data/file"]).failure();
        assert!(superblock_options(&b, &clone).starts_with("ro,nouuid"));
    }

    fn a_btrfs_clone_is_refused_while_its_original_is_mounted(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "btrfs");
        with_mounted(device.path(), |root| std::fs::write(root.join("file"), "both\n").unwrap());
        let clone = device.clone_in(node.dir());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let one = a.app();
        let b = Pod::new(&node, "pod-b", &clone, &[]);
        let sentence = b.expect_refusal();
        assert_contains(&sentence, &[utf8(device.path()), utf8(clone.path()), "file-system id", "hint: ", "btrfstune -u"]);
        assert!(!b.has(&clone) && clone.is_free());
        assert_eq!(one.sh("cat /data/file"), "both");

        // kubelet retries, after the original's pod has ended.
        a.end([one]);
        device.wait_until_free(WAIT_TIMEOUT);
        let two = b.app();
        assert_eq!(two.sh("cat /data/file"), "both");
        let sentence = Pod::new(&node, "pod-a", &device, &[]).expect_refusal();
        assert!(sentence.contains(utf8(clone.path())), "{sentence}");
    }

    fn ext4_clones_are_mounted_independently(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "ext4");
        let clone = device.clone_in(node.dir());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let b = Pod::new(&node, "pod-b", &clone, &[]);
        let (one, two) = (a.app(), b.app());
        let _ = one.sh("echo a > /data/file");
        let _ = two.exec(&["/bin/ls", "/data/file"]).failure();
    }
}

on_each_file_system! {
    /// The file system's id is the same, too, but two superblocks on the same blocks would corrupt the data.
    fn two_devices_on_one_file_are_not_treated_as_clones(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let alias = LoopDevice::on(device.file());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let app = a.app();
        let sentence = Pod::new(&node, "pod-b", &alias, &[]).expect_refusal_naming(&a);
        assert_contains(&sentence, &[device.number(), alias.number()]);
        assert!(alias.is_free());
        let _ = app.sh("echo x > /data/file; sync");
    }

    fn a_changed_device_link_does_not_affect_a_running_pod(delegate: Delegate, fstype: &'static str) {
        let node = Node::new(delegate);
        let (device, other) = (node.formatted(fstype), node.formatted(fstype));
        let link = node.dir().join("by-id");
        symlink(device.path(), &link).unwrap();
        let target = node.target("pod-a", "pv-1");
        let _ = node.try_stage_as(fstype, &target, &link, &["--device-node"]).success();
        let sandbox = node.sandbox("pod-a");
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("echo x > /data/file");
        fs::remove_file(&link).unwrap();
        symlink(other.path(), &link).unwrap();

        let second = node.app(&sandbox, &target, "/data");
        assert_eq!(second.sh("cat /data/file"), "x");
        let number = "cd /dev/crust && echo $((0x$(stat -c %t *))):$((0x$(stat -c %T *)))";
        assert_eq!(second.sh(number), device.number());
        assert!(other.is_free());
        let _ = node.stats(&target).success();
    }

    /// Such a mount needs the pod's privileges, so it is no additional risk.
    fn a_mount_that_covers_a_volume_in_its_sandbox_is_refused(delegate: Delegate, fstype: &'static str) {
        let node = Node::new(delegate);
        let (device, other) = (node.formatted(fstype), node.formatted(fstype));
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let _ = pod.app();
        let entry = node.entry(&pod.target);
        let place = format!("/.crust/{}", utf8(Path::new(entry.file_name().unwrap())));
        mount_in(&pod.sandbox, &other, &place);
        let app = node.container(&node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]).write());
        let sentence = app.expect_refusal();
        assert_contains(&sentence, &["volume pv-1: ", &place, device.number(), "hint: "]);
    }
}

/// Mounts a device in a sandbox, as root on the host could.
fn mount_in(sandbox: &Container, device: &LoopDevice, place: &str) {
    let (major, minor) = device.number().split_once(':').unwrap();
    let fstype = device.fstype();
    let script =
        format!("mknod /dev/other b {major} {minor} && mount -t {fstype} /dev/other {place}");
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--target={}", sandbox.pid()));
    let _ = Run::capture(nsenter.args(["--mount", "/bin/sh", "-ec", &script])).success();
}
