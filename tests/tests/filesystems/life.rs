//! A volume's life on each file system.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::Snapshot;
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{MountWatcher, Node, Pod, on_each_file_system, process, wait_until};

on_each_file_system! {
    fn a_volume_is_mounted_once_and_never_on_the_host(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let watcher = MountWatcher::start(device.path());
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        assert!(pod.has(&device));
        let (one, two) = (pod.app(), pod.app());
        let _ = one.sh("echo hello > /data/file");
        assert_eq!(two.sh("cat /data/file"), "hello");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        let mount = one.sh("grep ' /data ' /proc/self/mountinfo");
        assert!(mount.contains(&format!(" - {fstype} {} ", device.path().display())), "{mount}");

        end([one]);
        let three = pod.app();
        assert_eq!(three.sh("cat /data/file; echo again >> /data/file"), "hello");
        watcher.assert_never_mounted();

        end([two, three]);
        pod.sandbox.stop();
        let _ = pod.sandbox.delete().success();
        let _ = node.unstage(&pod.target).success();
        assert!(device.is_free(), "unstage returned before the device was free");
        fsck(fstype, device.path());
        let kept = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(kept, b"hello\nagain\n");
        pod.assert_target_empty();
    }

    fn subpaths_are_created_and_found_inside(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        with_mounted(device.path(), |root| {
            fs::create_dir(root.join("there")).unwrap();
            fs::write(root.join("there/file"), "there\n").unwrap();
            symlink("there", root.join("inside")).unwrap();
            symlink("/etc", root.join("outside")).unwrap();
        });
        let pod = Pod::new(&node, "pod-a", &device, &["--fs-group", "700"]);
        let bundle = node.app_bundle(&pod.sandbox)
            .bind(pod.target.join("new/and/deep"), "/new", &[])
            .bind(pod.target.join("inside"), "/inside", &[])
            .bind(pod.target.join("there/file"), "/file", &[]);
        let app = node.run(&bundle.write());
        assert_eq!(app.sh("stat -c '%g %a' /new; cat /inside/file /file"), "700 2775\nthere\nthere");
        let _ = app.sh("echo new > /new/file");
        let bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join("outside"), "/etc2", &[]);
        let refused = node.container(&bundle.write());
        let sentence = refused.expect_refusal();
        assert!(sentence.starts_with("volume pv-1: subPath \"outside\": "), "{sentence}");
        pod.end([app]);
        device.wait_until_free(WAIT_TIMEOUT);
        let new = with_mounted(device.path(), |root| fs::read(root.join("new/and/deep/file")).unwrap());
        assert_eq!(new, b"new\n");
    }

    fn a_volume_staged_with_ro_is_not_changed(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let before = with_mounted(device.path(), |root| {
            fs::write(root.join("file"), "hello\n").unwrap();
            Snapshot::take(root)
        });
        let bytes = fs::read(device.file()).unwrap();
        let pod = Pod::new(&node, "pod-a", &device, &["--option", "ro", "--fs-group", "700"]);
        assert!(pod.attributes(&device).starts_with("ro,"));
        let app = pod.app();
        assert_eq!(app.sh("cat /data/file; stat -c %g /data/file"), "hello\n0");
        let refused = app.exec(&["/bin/touch", "/data/new"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        let bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join("new"), "/data", &[]);
        let _ = node.container(&bundle.write()).create().failure();
        pod.end([app]);
        device.wait_until_free(WAIT_TIMEOUT);
        if fstype == "xfs" {
            // xfs clears its log after the last record, also on a read-only mount.
            fsck(fstype, device.path());
        } else {
            // assert_eq would print the whole image.
            assert!(fs::read(device.file()).unwrap() == bytes, "the device was written to");
        }
        let after = with_mounted(device.path(), Snapshot::take);
        after.assert_is(&before);
    }

    fn a_read_only_mount_affects_one_app_only(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let writer = pod.app();
        let bundle = node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &["rbind", "rprivate", "ro"]);
        let reader = node.run(&bundle.write());
        let _ = writer.sh("echo hello > /data/file");
        assert_eq!(reader.sh("cat /data/file"), "hello");
        let refused = reader.exec(&["/bin/touch", "/data/file"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        let _ = writer.sh("echo more >> /data/file");
    }

    fn two_pods_share_one_superblock(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let a = Pod::new(&node, "pod-a", &device, &["--option", "noatime"]);
        let b = Pod::new(&node, "pod-b", &device, &["--option", "nosuid"]);
        let (one, two) = (a.app(), b.app());
        let _ = one.sh("echo from a > /data/file");
        assert_eq!(two.sh("cat /data/file; echo from b >> /data/file"), "from a");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        a.end([one]);
        let _ = node.unstage(&a.target).success();
        assert_eq!(two.sh("cat /data/file"), "from a\nfrom b");
        b.end([two]);
        let _ = node.unstage(&b.target).success();
        assert!(device.is_free());
        fsck(fstype, device.path());
    }

    /// For btrfs the kernel would accept both mounts, with the options of the first mount.
    fn mounting_read_only_and_read_write_is_refused(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        for (first, second) in [(&[][..], &["--option", "ro"][..]), (&["--option", "ro"], &[])] {
            let a = Pod::new(&node, "pod-a", &device, first);
            let app = a.app();
            let b = Pod::new(&node, "pod-b", &device, second);
            let sentence = b.expect_refusal_naming(&a);
            for mode in ["(rw)", "(ro)"] {
                assert!(sentence.contains(&format!("{fstype} {mode}")), "{sentence}");
            }
            assert!(!b.has(&device));
            a.end([app]);
            b.end([]);
            for pod in [a, b] {
                let _ = node.unstage(&pod.target).success();
            }
        }
    }

    fn stats_match_what_the_app_sees(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let app = pod.app();
        let _ = app.sh("dd if=/dev/zero of=/data/file bs=1M count=3 2>/dev/null; sync -f /data");
        let answer = node.stats(&pod.target).success().stdout;
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let numbers = app.sh("stat -f -c '%S %b %a' /data");
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let bytes = &answer["usage"][0];
        assert_eq!(bytes["unit"], "BYTES");
        assert_eq!(bytes["total"], numbers[0] * numbers[1]);
        assert_eq!(bytes["available"], numbers[0] * numbers[2]);
        assert_eq!(answer["volume_condition"]["abnormal"], false, "{answer}");
    }

    fn a_pod_can_be_restarted_after_a_kill(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let app = pod.app();
        let _ = app.sh("dd if=/dev/zero of=/data/zeros bs=1M count=8 2>/dev/null; echo x > /data/file; sync");
        for container in [&app, &pod.sandbox] {
            process::kill_now(container.pid());
        }
        wait_until("the pod to end", WAIT_TIMEOUT, || !app.is_alive() && !pod.sandbox.is_alive());
        // Mounting replays the dirty journal.
        let sandbox = node.sandbox("pod-a");
        let app = node.app(&sandbox, &pod.target, "/data");
        assert_eq!(app.sh("cat /data/file"), "x");
        let _ = node.unstage(&pod.target).failure();
        for container in [&app, &sandbox] {
            process::kill_now(container.pid());
        }
        wait_until("the pod to end", WAIT_TIMEOUT, || !app.is_alive() && !sandbox.is_alive());
        let _ = node.unstage(&pod.target).success();
        assert!(device.is_free(), "unstage returned before the device was free");
        fsck(fstype, device.path());
    }
}
