//! A superblock has one set of options, and one device.

use std::fs;

use runcrust_tests::refusal::assert_contains;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Delegate, LoopDevice, Node, Pod, on_each_delegate};

/// Asserts that the second pod is refused until the first one has ended. The kernel would accept the second pod's
/// options, and ignore them.
fn assert_options_conflict(delegate: Delegate, first: &[&str], second: &[&str], names: &[&str]) {
    let (node, device) = Node::with_ext4(delegate);
    let a = Pod::new(&node, "pod-a", &device, first);
    let app = a.app();
    let b = Pod::new(&node, "pod-b", &device, second);
    let sentence = b.expect_refusal_naming(&a);
    assert_contains(&sentence, names);
    assert!(!b.has(&device));
    let _ = app.sh("ls /data");
    b.assert_target_empty();
    a.end([app]);
    let _ = b.app();
}

on_each_delegate! {
    fn read_only_is_refused_if_mounted_read_write(delegate: Delegate) {
        assert_options_conflict(delegate, &[], &["--option", "ro"], &["(rw)", "(ro)"]);
    }

    fn read_write_is_refused_if_mounted_read_only(delegate: Delegate) {
        assert_options_conflict(delegate, &["--option", "ro"], &[], &["(ro)", "(rw)"]);
    }

    fn different_options_are_refused(delegate: Delegate) {
        assert_options_conflict(delegate, &["--option", "commit=7"], &["--option", "commit=8"], &["commit=7", "commit=8"]);
    }

    fn an_additional_option_is_refused(delegate: Delegate) {
        assert_options_conflict(delegate, &[], &["--option", "nobarrier"], &["nobarrier"]);
    }

    fn two_read_only_pods_share_one_superblock(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let a = Pod::new(&node, "pod-a", &device, &["--option", "ro"]);
        let one = a.app();
        let b = Pod::new(&node, "pod-b", &device, &["--option", "noatime,ro"]);
        let two = b.app();
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        for app in [one, two] {
            let refused = app.exec(&["/bin/touch", "/data/file"]).failure();
            assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        }
    }

    /// Attributes belong to the mount, and each pod has its own. (Which of them a container sees depends on the
    /// delegate: crun 1.8 clears them on a bind mount with `rw`.)
    fn mount_attributes_may_differ(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let a = Pod::new(&node, "pod-a", &device, &["--option", "noexec,nodev"]);
        let b = Pod::new(&node, "pod-b", &device, &["--option", "noatime,defaults"]);
        let (one, two) = (a.app(), b.app());
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        assert_eq!(a.attributes(&device), "rw,nodev,noexec,relatime");
        assert_eq!(b.attributes(&device), "rw,noatime");
    }

    /// Two devices on one file would be two superblocks on the same blocks, which corrupts the file system.
    fn the_same_file_on_another_device_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let alias = LoopDevice::on(device.file());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let app = a.app();
        let _ = app.sh("echo from a > /data/a; sync");
        let b = Pod::new(&node, "pod-b", &alias, &[]);
        let sentence = b.expect_refusal_naming(&a);
        assert_contains(&sentence, &[device.number(), alias.number()]);
        assert!(alias.is_free());
        a.end([app]);
        device.wait_until_free(runcrust_tests::node::WAIT_TIMEOUT);
        assert_eq!(b.app().sh("cat /data/a"), "from a");
    }

    /// kubelet attaches such a loop device for a volume of mode `Block`.
    fn a_loop_device_on_a_device_conflicts_both_ways(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let upper = LoopDevice::on(device.path());
        for (first, second) in [(&device, &upper), (&upper, &device)] {
            let a = Pod::new(&node, "pod-a", first, &[]);
            let app = a.app();
            let b = Pod::new(&node, "pod-b", second, &[]);
            let sentence = b.expect_refusal_naming(&a);
            assert_contains(&sentence, &[device.number(), upper.number()]);
            b.end([]);
            a.end([app]);
            for pod in [&a, &b] {
                let _ = node.unstage(&pod.target).success();
            }
        }
        // The lower device is also refused if the upper one is mounted without a record.
        with_mounted(upper.path(), |_| {
            let sentence = Pod::new(&node, "pod-c", &device, &[]).expect_refusal();
            assert!(sentence.contains("in use"), "{sentence}");
        });
    }

    /// Each driver sees its directory at a path in its own container, so a backing file's path neither exists here nor
    /// is it unique.
    fn backing_files_are_not_identified_by_path(delegate: Delegate) {
        let node = Node::new(delegate);
        let [one, two, seen] = ["one", "two", "seen"].map(|name| node.dir().subdir(name));
        let images = [&one, &two].map(|directory| {
            let formatted = node.ext4();
            let file = directory.join("pv.img");
            fs::copy(formatted.file(), &file).unwrap();
            file
        });
        let first = LoopDevice::on_as_seen_at(&images[0], &seen);
        let same = LoopDevice::on(&images[0]);
        let other = LoopDevice::on_as_seen_at(&images[1], &seen);
        let a = Pod::new(&node, "pod-a", &first, &[]);
        let app = a.app();
        let b = Pod::new(&node, "pod-b", &same, &[]);
        let _ = b.expect_refusal_naming(&a);
        let c = Pod::new(&node, "pod-c", &other, &[]);
        assert_eq!(c.app().sh("echo x > /data/file; cat /data/file"), "x");
        a.end([app]);
    }

    fn a_pods_second_volume_on_the_same_file_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let alias = LoopDevice::on(device.file());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let _app = a.app();
        let second = node.stage("pod-a", "pv-2", &alias, &[]);
        let bundle = node.app_bundle(&a.sandbox).bind(&second, "/data", &[]).write();
        let app = node.container(&bundle);
        let sentence = app.expect_refusal();
        assert_contains(&sentence, &["volume pv-2: ", device.number(), alias.number()]);
        assert!(alias.is_free());
    }
}
