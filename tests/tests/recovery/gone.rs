//! KEP-2857's story 5: a driver that doesn't defer any more removes the target directory and never
//! unstages. What was staged goes then, and only then.

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

use crate::{OTHER_POD, assert_collected, kinds, next_works, pod_directory, why_left};

/// A volume on a device of its own, which a pod has had.
fn used(node: &Node) -> (LoopDevice, PathBuf) {
    let device = node.ext4();
    let target = node.stage(POD, "pv-1", &device, &[]);
    next_works(node, POD, &target);
    // A `delete` comes before its bundle's end.
    assert_collected(node, &["bundle"]);
    (device, target)
}

on_each_delegate! {
    fn with_its_target_directory_the_volume_goes(delegate: Delegate) {
        for gone in [|node: &Node, _: &Path| pod_directory(node, POD), |_: &Node, target: &Path| target.to_owned()] {
            let node = Node::new(delegate);
            let (device, target) = used(&node);
            fs::remove_dir_all(gone(&node, &target)).unwrap();
            assert_collected(&node, &["owner", "volume"]);
            node.assert_nothing_left();
            let again = node.stage(POD, "pv-1", &device, &[]);
            next_works(&node, POD, &again);
        }
    }

    fn both_entries_of_it_go(delegate: Delegate) {
        let node = Node::new(delegate);
        symlink(node.dir().subdir("real"), node.handler().kubelet_dir()).unwrap();
        let (_device, target) = used(&node);
        let resolved = target.canonicalize().unwrap();
        assert!(node.entry(&target).exists() && node.entry(&resolved).exists());
        fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
        assert_collected(&node, &["owner", "volume"]);
        node.assert_nothing_left();
    }

    /// kubelet doesn't publish again for a sandbox that it makes anew.
    fn not_while_the_pod_may_make_a_sandbox_anew(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        fs::remove_dir_all(&volume.target).unwrap();
        assert_collected(&volume, &[]);
        let app = volume.app(&sandbox);
        // containerd would have made the directory again.
        let _ = fs::remove_dir_all(&volume.target);
        process::kill_and_wait(sandbox.pid());
        // Its app has a pid namespace of its own, and lives on.
        assert_collected(&volume, &["sandbox", "user"]);
        let again = volume.sandbox();
        kill_and_remove_bundles(&[&app]);
        assert_collected(&volume, &["bundle", "user"]);
        let app = volume.app(&again);
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, again]);
        let _ = fs::remove_dir_all(&volume.target);
        assert_collected(&volume, &["bundle", "owner", "volume"]);
    }
}

/// A `delete` that comes after its volume has gone, as containerd's does when it comes back.
#[test]
fn whoever_releases_it_later_leaves_nothing_of_it() {
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

/// As a `gc` leaves it that is killed on its way.
#[test]
fn a_lock_whose_volume_is_gone_goes_unless_somebody_has_it() {
    let node = Node::new(Delegate::Runc);
    let (_device, target) = used(&node);
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
fn not_while_its_device_is_in_use() {
    let node = Node::new(Delegate::Runc);
    let (device, target) = used(&node);
    fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
    with_mounted(device.path(), |_| {
        let why = why_left(&node, "volume");
        assert!(why.contains(utf8(device.path())), "{why}");
    });
    assert!(node.entry(&target).exists());
    // Another pod's use is on record.
    let other = node.stage(OTHER_POD, "pv-1", &device, &[]);
    let sandbox = node.sandbox(OTHER_POD);
    assert_collected(&node, &["owner", "volume"]);
    end([sandbox]);
    node.unstage_all(&[&other]);
}

#[test]
fn not_where_nothing_is_missing_that_was_there() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    // By hand, before there is a pod.
    let target = node.handler().target_path(POD, "pv-1");
    fs::create_dir_all(node.handler().kubelet_dir().join("pods")).unwrap();
    let _ = node.try_stage(&target, device.path(), &[]).success();
    assert_collected(&node, &[]);
    fs::create_dir(pod_directory(&node, OTHER_POD)).unwrap();
    assert_collected(&node, &[]);
    let _ = node.unstage(&target).success();
    // A driver may stage before it makes the directory, in the one that kubelet has made.
    let place = target.parent().unwrap();
    fs::create_dir_all(place).unwrap();
    let _ = node.try_stage(&target, device.path(), &[]).success();
    assert_collected(&node, &[]);
    fs::create_dir(&target).unwrap();
    assert_collected(&node, &[]);
    fs::remove_dir(&target).unwrap();
    assert_collected(&node, &[]);
    // What nobody has seen at a stage is seen at the first use.
    fs::create_dir(&target).unwrap();
    next_works(&node, POD, &target);
    assert_collected(&node, &["bundle"]);
    fs::remove_dir(&target).unwrap();
    assert_collected(&node, &["owner", "volume"]);
    node.assert_nothing_left();
}

#[test]
fn not_where_nobody_said_whether_it_was_there() {
    let volume = StagedVolume::new(Delegate::Runc);
    // As others than crust_ops stage, and its first versions.
    let seen = volume.entry().join("target.json");
    fs::remove_file(&seen).unwrap();
    fs::remove_dir(&volume.target).unwrap();
    let why = why_left(&volume, "volume");
    assert!(
        why.contains("isn't recorded whether it did") && why.contains("crust unstage"),
        "{why}"
    );
    fs::create_dir(&volume.target).unwrap();
    next_works(&volume, POD, &volume.target);
    assert!(seen.exists());
    fs::remove_dir(&volume.target).unwrap();
    assert_collected(&volume, &["bundle", "owner", "volume"]);
}

#[test]
fn a_replaced_target_or_missing_kubelet_directory_is_kept() {
    let node = Node::new(Delegate::Runc);
    let (_device, target) = used(&node);
    fs::remove_dir(&target).unwrap();
    let place = target.parent().unwrap();
    let says = |words: &str| {
        let why = why_left(&node, "volume");
        assert!(why.contains(words), "{why}");
        assert!(node.entry(&target).exists());
    };
    fs::write(&target, "").unwrap();
    says("is a file");
    fs::remove_file(&target).unwrap();
    symlink("nowhere", &target).unwrap();
    says("is a symbolic link");
    fs::remove_file(&target).unwrap();
    fs::remove_dir(place).unwrap();
    fs::write(place, "").unwrap();
    // ENOTDIR.
    says("lstat ");
    fs::remove_file(place).unwrap();
    let (kubelet, away) = (node.handler().kubelet_dir(), node.dir().join("away"));
    fs::rename(&kubelet, &away).unwrap();
    says("is kubelet's directory mounted?");
    fs::create_dir(&kubelet).unwrap();
    says("is kubelet's directory mounted?");
    fs::remove_dir(&kubelet).unwrap();
    fs::rename(&away, &kubelet).unwrap();
    assert_collected(&node, &["owner", "volume"]);
}

/// The directory is the machine's: other tests' entries are there too.
#[test]
fn what_is_staged_for_kata_is_its_drivers() {
    let node = Node::with(Delegate::Runc, "kata_layout = true");
    let device = node.ext4();
    let target = node.target(POD, "pv-1");
    let info = json!({"volume-type": "block", "device": device.path(), "fstype": "ext4"});
    let entry = KataEntry::add(&target, &info);
    next_works(&node, POD, &target);
    fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
    let said = gc(&node, &["--dry-run"]);
    let own = |it: &serde_json::Value| it["target_path"] == utf8(&target);
    assert!(!said.removed.iter().chain(&said.left).any(own), "{said:?}");
    entry.remove();
    let said = gc(&node, &["--dry-run"]);
    let removed: Vec<_> = said.removed.into_iter().filter(own).collect();
    assert_eq!(kinds(&removed), ["owner"]);
}

#[test]
fn crust_ops_does_so_by_itself() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "reconcile_interval = 1");
    let device = node.ext4();
    let [target, other] = [POD, OTHER_POD].map(|pod| node.target(pod, "pv-1"));
    for target in [&target, &other] {
        ops.stage(stage_request(target, &device)).unwrap();
    }
    next_works(&node, POD, &target);
    fs::remove_dir_all(pod_directory(&node, POD)).unwrap();
    wait_until("the volume to go", WAIT_TIMEOUT, || {
        !node.entry(&target).exists()
    });
    wait_until("that to be told", WAIT_TIMEOUT, || {
        let told = |line: &str| {
            line.contains(utf8(&target)) && line.contains("its target directory is gone")
        };
        ops.log().lines().any(told)
    });
    assert!(node.entry(&other).exists());
    ops.unstage(&target).expect("what is gone is unstaged");
    ops.unstage(&other).unwrap();
    wait_until("what else is left to go", WAIT_TIMEOUT, || {
        node.records().is_empty() && node.volume_locks().is_empty()
    });
}
