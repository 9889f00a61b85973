//! Pods with a volume that is staged in Kata's layout.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use runcrust_tests::container::end;
use runcrust_tests::gc::{assert_nothing_unknown, gc};
use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{MountWatcher, POD, mounts, on_each_delegate};

use super::*;

on_each_delegate! {
    fn a_pod_has_its_volume_until_unstage(delegate: Delegate) {
        // Drivers copy the volume's attributes into the metadata. None of them requests the raw device.
        let staged = StagedNode::new(delegate, json!({"fsGroup": "2000", "deviceNode": "true", "size": "5Gi"}));
        let StagedNode { node, device, target, entry } = &staged;
        let watcher = MountWatcher::start(device.path());
        let sandbox = node.sandbox(POD);
        let one = node.app(&sandbox, target, "/data");
        let two = node.app(&sandbox, &target.join("sub"), "/data");
        let _ = one.sh("echo hello > /data/sub/file");
        assert_eq!(two.sh("cat /data/file"), "hello");
        assert_eq!(one.sh("stat -c '%g %a' /data"), "2000 2775");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        assert_eq!(one.sh("ls -d /dev/crust* 2>/dev/null | wc -l"), "0");

        let stats = node.stats(target).success();
        assert!(stats.stdout.contains("\"unit\":\"BYTES\""), "{stats}");
        let cli = fs::read_to_string(entry.path().join("runtime-cli")).unwrap();
        assert_eq!(cli, format!("{}\n", node.handler().path().display()));
        let record = fs::read_to_string(entry.path().join("runcrust.json")).unwrap();
        assert!(record.contains(one.id()) && record.contains(two.id()), "{record}");
        let refused = node.unstage(target).failure();
        assert!(refused.stderr.contains("FAILED_PRECONDITION"), "{refused}");
        assert!(!node.entry(target).exists(), "an entry was written to the crust directory");

        end([one, two, sandbox]);
        device.wait_until_free(WAIT_TIMEOUT);
        watcher.assert_never_mounted();
        fsck_ext4(device.path());
        node.unstage_all(&[target]);
        assert!(!entry.path().exists());
        assert_eq!(node.stats(target).failure().stderr.matches("NOT_FOUND").count(), 1);
    }

    fn on_root_mismatch_is_applied(delegate: Delegate) {
        let staged = StagedNode::new(
            delegate,
            json!({"fsGroup": "2000", "fsGroupChangePolicy": "OnRootMismatch"}),
        );
        with_mounted(staged.device.path(), |root| {
            fs::write(root.join("file"), "").unwrap();
            chown(root, None, Some(2000)).unwrap();
            fs::set_permissions(root, Permissions::from_mode(0o2775)).unwrap();
        });
        let sandbox = staged.node.sandbox(POD);
        let app = staged.node.app(&sandbox, &staged.target, "/data");
        assert_eq!(app.sh("stat -c %g /data/file"), "0", "fsGroup was applied although the root matches");
    }

    fn mount_options_are_applied(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let mut info = info(&staged.device);
        info["options"] = json!(["ro", "noatime"]);
        staged.entry.write(&info.to_string());
        let sandbox = staged.node.sandbox(POD);
        let app = staged.node.app(&sandbox, &staged.target, "/data");
        let refused = app.exec(&["/bin/touch", "/data/new"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        assert!(app.sh("grep ' /data ' /proc/self/mountinfo").contains("noatime"));
    }

    /// The driver only writes an entry for the path that kubelet passed.
    fn behind_a_link_the_volume_is_found_by_either_path(delegate: Delegate) {
        let node = Node::with(delegate, "kata_layout = true");
        let real = node.dir().subdir("srv/kubelet");
        symlink("srv/kubelet", node.handler().kubelet_dir()).unwrap();
        let device = node.ext4();
        let given = node.target(POD, "pv-1");
        let _entry = KataEntry::add(&given, &info(&device));
        let resolved = real.join(given.strip_prefix(node.handler().kubelet_dir()).unwrap());
        let sandbox = node.sandbox(POD);
        let one = node.app(&sandbox, &given, "/data");
        let two = node.app(&sandbox, &resolved.join("sub"), "/data");
        let _ = one.sh("echo hello > /data/sub/file");
        assert_eq!(two.sh("cat /data/file"), "hello");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        assert_eq!(node.stats(&resolved).success().stdout, node.stats(&given).success().stdout);
        assert!(device.host_mounts().is_empty());
    }

    /// Kata's own driver mounts the staging directory on the target path.
    fn a_drivers_mount_on_the_target_path_is_not_shown(delegate: Delegate) {
        let node = Node::with(delegate, "kata_layout = true");
        let (target, staging) = (node.target(POD, "pv-1"), node.dir().subdir("staging"));
        fs::write(staging.join("disk.img"), "host\n").unwrap();
        mounts::bind(&staging, &target);
        let device = node.ext4();
        let _entry = KataEntry::add(&target, &info(&device));
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("echo x > /data/file");
        assert_eq!(app.sh("ls /data"), "file\nlost+found");
        assert!(!staging.join("file").exists());
    }

    fn a_stock_kubelets_subpath_is_found(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let sandbox = staged.node.sandbox(POD);
        let of_app = SubPath { pod_uid: POD, volume: "pv-1", directory: &staged.target, path: "db", index: 0 };
        let app = staged.node.app(&sandbox, &of_app.bind(&staged.node.handler().kubelet_dir()), "/data");
        let _ = app.sh("echo x > /data/file");
        let whole = staged.node.app(&sandbox, &staged.target, "/data");
        assert_eq!(whole.sh("cat /data/db/file"), "x");
        assert_eq!(fs::read_dir(staged.target.join("db")).unwrap().count(), 0);
    }

    /// Drivers remove the entry themselves, and `unstage` is never called.
    fn records_of_a_removed_entry_are_removed(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let sandbox = staged.node.sandbox(POD);
        let app = staged.node.app(&sandbox, &staged.target, "/data");
        end([app, sandbox]);
        staged.device.wait_until_free(WAIT_TIMEOUT);
        let in_use = ["runcrust.json", "runtime-cli"].map(|file| staged.entry.path().join(file).exists());
        assert_eq!(in_use, [false; 2]);
        staged.entry.remove();
        let owners = || staged.node.records().iter().filter(|file| file.starts_with("run/owners")).count();
        assert_eq!(owners(), 1, "the record is kept until the next pod's end");
        // The end of any other pod removes the record.
        let device = staged.node.ext4();
        let target = staged.node.stage("pod-b", "pv-2", &device, &[]);
        end([staged.node.sandbox("pod-b")]);
        assert_eq!(owners(), 1, "more than the other pod's own record");
        device.wait_until_free(WAIT_TIMEOUT);
        // gc removes the lock of a volume that was never unstaged.
        assert_nothing_unknown(&staged.node);
        let _ = gc(&staged.node, &[]);
        staged.node.unstage_all(&[&target]);
    }
}
