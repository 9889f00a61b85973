//! KEP-2857's story 5: a driver that no longer defers removes the target directory and never unstages. `gc` removes
//! the entry in this case only.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::container::{end, kill_and_remove_bundles};
use runcrust_tests::gc::gc;
use runcrust_tests::kata::KataEntry;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Delegate, LoopDevice, Node, Ops, POD, StagedVolume, on_each_delegate, process, wait_until,
};
use serde_json::json;

use crate::{
    OTHER_POD, assert_collected, assert_next_pod_works, kinds, pod_directory, reason_of_finding,
};

/// Stages a volume, and runs and removes a pod with it.
fn stage_and_use(node: &Node) -> (LoopDevice, PathBuf) {
    let device = node.ext4();
    let target = node.stage(POD, "pv-1", &device, &[]);
    assert_next_pod_works(node, POD, &target);
    // The container's bundle is removed after `delete`, so the record of the bundle is still there.
    assert_collected(node, &["bundle"]);
    (device, target)
}

on_each_delegate! {
    fn a_volume_is_removed_with_its_target_directory(delegate: Delegate) {
        for gone in [|node: &Node, _: &Path| pod_directory(node, POD), |_: &Node, target: &Path| target.to_owned()] {
            let node = Node::new(delegate);
            let (device, target) = stage_and_use(&node);
            fs::remove_dir_all(gone(&node, &target)).unwrap();
            assert_collected(&node, &["owner", "volume"]);
            node.assert_nothing_left();
            let staged = node.stage(POD, "pv-1", &device, &[]);
            assert_next_pod_works(&node, POD, &staged);
        }
    }

    fn both_entries_behind_a_link_are_removed(delegate: Delegate) {
        let node = Node::new(delegate);
        symlink(node.dir().subdir("real"), node.handler().kubelet_dir()).unwrap();
        let (_device, target) = stage_and_use(&node);
        let resolved = target.canonicalize().unwrap();
        assert!(node.entry(&target).exists() && node.entry(&resolved).exists());
        fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
        assert_collected(&node, &["owner", "volume"]);
        node.assert_nothing_left();
    }

    /// kubelet does not publish again for a new sandbox of the pod.
    fn a_volume_is_kept_while_its_pod_may_get_a_new_sandbox(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        fs::remove_dir_all(&volume.target).unwrap();
        assert_collected(&volume, &[]);
        let app = volume.app(&sandbox);
        // The app's create made the directory, as containerd does.
        let _ = fs::remove_dir_all(&volume.target);
        process::kill_and_wait(sandbox.pid());
        // The app has its own pid namespace, so it survives.
        assert_collected(&volume, &["sandbox", "user"]);
        let restarted = volume.sandbox();
        kill_and_remove_bundles(&[&app]);
        assert_collected(&volume, &["bundle", "user"]);
        let app = volume.app(&restarted);
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, restarted]);
        let _ = fs::remove_dir_all(&volume.target);
        assert_collected(&volume, &["bundle", "owner", "volume"]);
    }
}

/// A restarted containerd calls `delete` for dead containers, after the volume was removed.
#[test]
fn a_delete_after_the_volumes_removal_leaves_nothing() {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Runc);
    let app = volume.app(&sandbox);
    for container in [&app, &sandbox] {
        process::kill_and_wait(container.pid());
    }
    volume.device.wait_until_free(WAIT_TIMEOUT);
    fs::remove_dir_all(pod_directory(&volume, POD)).unwrap();
    assert_collected(&volume, &["owner", "sandbox", "user", "volume"]);
    end([app, sandbox]);
    assert_collected(&volume, &["bundle"]);
    volume.assert_nothing_left();
}

/// A `gc` that was killed leaves the lock of a removed volume.
#[test]
fn the_lock_of_a_removed_volume_is_removed_unless_held() {
    let node = Node::new(Delegate::Runc);
    let (_device, target) = stage_and_use(&node);
    let lock = node.lock_file(&target);
    let _ = node.unstage(&target).success();
    assert!(!lock.exists());
    let held = File::create(&lock).unwrap();
    let held = Flock::lock(held, FlockArg::LockExclusive).expect("the lock");
    assert_collected(&node, &[]);
    drop(held);
    assert_collected(&node, &["leftover"]);
    node.assert_nothing_left();
}

#[test]
fn a_volume_is_kept_while_its_device_is_in_use() {
    let node = Node::new(Delegate::Runc);
    let (device, target) = stage_and_use(&node);
    fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
    with_mounted(device.path(), |_| {
        let why = reason_of_finding(&node, "volume");
        assert!(why.contains(utf8(device.path())), "{why}");
    });
    assert!(node.entry(&target).exists());
    // Now the device's only user is recorded, and belongs to another volume. Such a user does not keep this volume.
    let other = node.stage(OTHER_POD, "pv-1", &device, &[]);
    let sandbox = node.sandbox(OTHER_POD);
    assert_collected(&node, &["owner", "volume"]);
    end([sandbox]);
    node.unstage_all(&[&other]);
}

#[test]
fn a_target_directory_counts_as_gone_only_if_it_was_seen() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    // The volume is staged by hand, before its pod exists.
    let target = node.handler().target_path(POD, "pv-1");
    fs::create_dir_all(node.handler().kubelet_dir().join("pods")).unwrap();
    let _ = node.try_stage(&target, device.path(), &[]).success();
    assert_collected(&node, &[]);
    fs::create_dir(pod_directory(&node, OTHER_POD)).unwrap();
    assert_collected(&node, &[]);
    let _ = node.unstage(&target).success();
    // A driver may stage before it creates the target directory, in the directory that kubelet has created.
    let place = target.parent().unwrap();
    fs::create_dir_all(place).unwrap();
    let _ = node.try_stage(&target, device.path(), &[]).success();
    assert_collected(&node, &[]);
    fs::create_dir(&target).unwrap();
    assert_collected(&node, &[]);
    fs::remove_dir(&target).unwrap();
    assert_collected(&node, &[]);
    // A target directory that did not exist at the stage is recorded at the first use.
    fs::create_dir(&target).unwrap();
    assert_next_pod_works(&node, POD, &target);
    assert_collected(&node, &["bundle"]);
    fs::remove_dir(&target).unwrap();
    assert_collected(&node, &["owner", "volume"]);
    node.assert_nothing_left();
}

#[test]
fn a_volume_is_kept_if_its_target_directory_is_unrecorded() {
    let volume = StagedVolume::new(Delegate::Runc);
    // An entry that another program or an early version of crust_ops wrote has no `target.json`.
    let target_record = volume.entry().join("target.json");
    fs::remove_file(&target_record).unwrap();
    fs::remove_dir(&volume.target).unwrap();
    let why = reason_of_finding(&volume, "volume");
    assert!(
        why.contains("isn't recorded whether it did") && why.contains("crust unstage"),
        "{why}"
    );
    fs::create_dir(&volume.target).unwrap();
    assert_next_pod_works(&volume, POD, &volume.target);
    assert!(target_record.exists());
    fs::remove_dir(&volume.target).unwrap();
    assert_collected(&volume, &["bundle", "owner", "volume"]);
}

#[test]
fn a_replaced_target_or_missing_kubelet_directory_is_kept() {
    let node = Node::new(Delegate::Runc);
    let (_device, target) = stage_and_use(&node);
    fs::remove_dir(&target).unwrap();
    let place = target.parent().unwrap();
    let assert_left = |words: &str| {
        let why = reason_of_finding(&node, "volume");
        assert!(why.contains(words), "{why}");
        assert!(node.entry(&target).exists());
    };
    fs::write(&target, "").unwrap();
    assert_left("is a file");
    fs::remove_file(&target).unwrap();
    symlink("nowhere", &target).unwrap();
    assert_left("is a symbolic link");
    fs::remove_file(&target).unwrap();
    fs::remove_dir(place).unwrap();
    fs::write(place, "").unwrap();
    // The parent of the target path is a file, so lstat fails with ENOTDIR.
    assert_left("lstat ");
    fs::remove_file(place).unwrap();
    let (kubelet, away) = (node.handler().kubelet_dir(), node.dir().join("away"));
    fs::rename(&kubelet, &away).unwrap();
    assert_left("check that kubelet's directory is mounted");
    fs::create_dir(&kubelet).unwrap();
    assert_left("check that kubelet's directory is mounted");
    fs::remove_dir(&kubelet).unwrap();
    fs::rename(&away, &kubelet).unwrap();
    assert_collected(&node, &["owner", "volume"]);
}

/// The test ignores other entries, because the directory of Kata's entries is shared with other tests.
#[test]
fn an_entry_of_kata_is_never_removed() {
    let node = Node::with(Delegate::Runc, "kata_layout = true");
    let device = node.ext4();
    let target = node.target(POD, "pv-1");
    let info = json!({"volume-type": "block", "device": device.path(), "fstype": "ext4"});
    let entry = KataEntry::add(&target, &info);
    assert_next_pod_works(&node, POD, &target);
    fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
    let report = gc(&node, &["--dry-run"]);
    let own = |it: &serde_json::Value| it["target_path"] == utf8(&target);
    assert!(
        !report.removed.iter().chain(&report.left).any(own),
        "{report:?}"
    );
    entry.remove();
    let report = gc(&node, &["--dry-run"]);
    let removed: Vec<_> = report.removed.into_iter().filter(own).collect();
    assert_eq!(kinds(&removed), ["owner"]);
}

#[test]
fn crust_ops_removes_such_volumes_periodically() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "reconcile_interval = 1");
    let device = node.ext4();
    let [target, other] = [POD, OTHER_POD].map(|pod| node.target(pod, "pv-1"));
    for target in [&target, &other] {
        ops.stage(stage_request(target, &device)).unwrap();
    }
    assert_next_pod_works(&node, POD, &target);
    fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
    wait_until("the volume's removal", WAIT_TIMEOUT, || {
        !node.entry(&target).exists()
    });
    wait_until("the line in the log", WAIT_TIMEOUT, || {
        let is_logged = |line: &str| {
            line.contains(utf8(&target)) && line.contains("its target directory is gone")
        };
        ops.log().lines().any(is_logged)
    });
    assert!(node.entry(&other).exists());
    ops.unstage(&target)
        .expect("unstaging a removed volume succeeds");
    ops.unstage(&other).unwrap();
    wait_until("the removal of all records", WAIT_TIMEOUT, || {
        node.records().is_empty() && node.volume_locks().is_empty()
    });
}
