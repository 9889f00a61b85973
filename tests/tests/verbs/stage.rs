//! `stage`: what it writes, and when it refuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Node, StagedVolume, on_each_delegate};
use serde_json::{Value, json};

use crate::output::{assert_done, assert_error};

fn info(node: &Node, target: &Path) -> Value {
    let bytes = fs::read(node.entry(target).join("mountInfo.json")).expect("mountInfo.json");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// Returns path, inode, ctime and content of a directory and of each file in it, to detect any change.
fn identities(directory: &Path) -> Vec<(PathBuf, u64, i64, i64, Vec<u8>)> {
    let mut paths = vec![directory.to_owned()];
    let entries = fs::read_dir(directory).expect("a directory");
    paths.extend(entries.map(|entry| entry.expect("an entry").path()));
    paths.sort();
    let identity = |path: PathBuf| {
        let stat = fs::symlink_metadata(&path).expect("stat");
        let bytes = fs::read(&path).unwrap_or_default();
        (path, stat.ino(), stat.ctime(), stat.ctime_nsec(), bytes)
    };
    paths.into_iter().map(identity).collect()
}

#[test]
fn an_entry_holds_the_arguments_and_belongs_to_root() {
    let volume = StagedVolume::with(
        Delegate::Runc,
        &[
            "--option",
            "noatime",
            "--option=commit=7",
            "--fs-group",
            "0",
            "--fs-group-change-policy",
            "OnRootMismatch",
            "--read-only",
            "--access-mode",
            "SINGLE_NODE_SINGLE_WRITER",
        ],
    );
    let expected = json!({
        "version": 1,
        "volume-type": "block",
        "device": volume.device.path(),
        "fstype": "ext4",
        "options": ["noatime", "commit=7"],
        "metadata": {
            "fsGroup": "0",
            "fsGroupChangePolicy": "OnRootMismatch",
            "targetPath": volume.target,
            "readOnly": true,
            "accessMode": "SINGLE_NODE_SINGLE_WRITER",
            "diskSeq": volume.device.disk_seq(),
        },
    });
    assert_eq!(info(&volume, &volume.target), expected);

    let entry = volume.entry();
    let mut names: Vec<_> = fs::read_dir(&entry)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["mountInfo.json", "target.json"]);
    let root = volume.handler().crust_root();
    for (path, mode) in [
        (root.clone(), 0o40700),
        (entry.clone(), 0o40700),
        (entry.join("mountInfo.json"), 0o100_600),
    ] {
        let stat = fs::symlink_metadata(&path).unwrap();
        let found = (stat.mode(), stat.uid(), stat.gid());
        assert_eq!(found, (mode, 0, 0), "{}", path.display());
    }
    let entries: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert_eq!(
        entries,
        [entry],
        "other files are left in the crust directory"
    );
    assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0);
    assert!(volume.device.is_free());
}

#[test]
fn optional_fields_are_left_out() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let target = node.stage("pod-a", "pv-1", &device, &[]);
    let expected = json!({
        "version": 1,
        "volume-type": "block",
        "device": device.path(),
        "fstype": "ext4",
        "metadata": {"targetPath": target, "diskSeq": device.disk_seq()},
    });
    assert_eq!(info(&node, &target), expected);
    let target = node.stage("pod-a", "pv-2", &device, &["--fs-group", "4294967294"]);
    let metadata = &info(&node, &target)["metadata"];
    assert_eq!(metadata["fsGroup"], "4294967294");
    assert_eq!(metadata["fsGroupChangePolicy"], "Always");
}

#[test]
fn a_target_path_is_normalized() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let target = node.target("pod-a", "pv-1");
    let spelled = format!("/{}/./", target.display());
    assert_done(node.try_stage(Path::new(&spelled), device.path(), &[]));
    assert_eq!(
        info(&node, &target)["metadata"]["targetPath"],
        json!(target)
    );
    assert_done(node.unstage(Path::new(&spelled.replace("/volumes", "//volumes"))));
    assert!(!node.entry(&target).exists());
}

/// kubelet publishes before it has created all of the pod's directories, and the driver creates the last one.
#[test]
fn a_target_path_need_not_exist_and_is_not_created() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let target = node.handler().target_path("pod-a", "pv-1");
    assert_done(node.try_stage(&target, device.path(), &[]));
    assert!(!target.exists());
    assert_eq!(
        info(&node, &target)["metadata"]["targetPath"],
        json!(target)
    );
}

#[test]
fn a_device_is_recorded_by_the_given_path() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let by_id = node.dir().join("by-id");
    symlink(device.path(), &by_id).unwrap();
    let target = node.target("pod-a", "pv-1");
    assert_done(node.try_stage(&target, &by_id, &[]));
    assert_eq!(info(&node, &target)["device"], json!(by_id));
}

#[test]
fn restaging_an_unused_volume_replaces_its_entry() {
    let node = Node::new(Delegate::Runc);
    let (old, new) = (node.ext4(), node.ext4());
    let target = node.stage(
        "pod-a",
        "pv-1",
        &old,
        &["--fs-group", "1", "--option", "noatime"],
    );
    assert_done(node.try_stage(&target, new.path(), &["--read-only"]));
    let expected = json!({
        "version": 1,
        "volume-type": "block",
        "device": new.path(),
        "fstype": "ext4",
        "metadata": {"targetPath": target, "readOnly": true, "diskSeq": new.disk_seq()},
    });
    assert_eq!(info(&node, &target), expected);
    // A refused request replaces nothing.
    let before = identities(&node.entry(&target));
    let run = node.try_stage(&target, old.path(), &["--option", "bind"]);
    assert_error(run, "INVALID_ARGUMENT", &["bind"]);
    assert_eq!(identities(&node.entry(&target)), before);
}

#[test]
fn staging_replaces_an_unreadable_entry() {
    let volume = StagedVolume::new(Delegate::Runc);
    let file = volume.entry().join("mountInfo.json");
    let good = fs::read(&file).unwrap();
    for bad in ["", "{", "{\"version\":2}"] {
        fs::write(&file, bad).unwrap();
        assert_done(volume.try_stage(&volume.target, volume.device.path(), &[]));
        assert_eq!(fs::read(&file).unwrap(), good, "after {bad:?}");
    }
    fs::remove_file(&file).unwrap();
    assert_done(volume.try_stage(&volume.target, volume.device.path(), &[]));
    assert_eq!(fs::read(&file).unwrap(), good);
}

#[test]
fn concurrent_stages_leave_complete_entries() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let targets: Vec<PathBuf> = (0..4)
        .map(|index| node.target("pod-a", &format!("pv-{index}")))
        .collect();
    thread::scope(|scope| {
        for (index, target) in targets.iter().chain(&targets).chain(&targets).enumerate() {
            let (node, device) = (&node, device.path());
            let option = format!("commit={}", 1 + index / targets.len());
            scope.spawn(move || {
                assert_done(node.try_stage(target, device, &["--option", &option]));
            });
        }
    });
    for target in &targets {
        let options = info(&node, target)["options"].clone();
        let one_of = ["commit=1", "commit=2", "commit=3"].map(|option| json!([option]));
        assert!(one_of.contains(&options), "{options}");
    }
    let left = fs::read_dir(node.handler().crust_root()).unwrap().count();
    assert_eq!(left, targets.len());
}

#[test]
fn a_volume_behind_a_link_is_staged_under_both_paths() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let real = node.dir().subdir("real");
    symlink(&real, node.handler().kubelet_dir()).unwrap();
    let volume = StagedVolume::on_device(node, device, &[]);
    let resolved = volume.target.canonicalize().unwrap();
    assert!(resolved.starts_with(&real));
    assert_eq!(info(&volume, &volume.target), info(&volume, &resolved));
    assert_eq!(
        info(&volume, &resolved)["metadata"]["targetPath"],
        json!(volume.target)
    );
    let before = identities(&volume.node.entry(&resolved));
    assert_done(volume.try_stage(&volume.target, volume.device.path(), &[]));
    assert_eq!(identities(&volume.node.entry(&resolved)), before);
    assert_done(volume.try_stage(&volume.target, volume.device.path(), &["--read-only"]));
    assert_eq!(
        info(&volume, &resolved)["metadata"]["readOnly"],
        json!(true)
    );
    assert_done(volume.unstage());
    assert_eq!(volume.records(), <[PathBuf; 0]>::default());
}

on_each_delegate! {
    fn restaging_with_equal_arguments_changes_nothing(delegate: Delegate) {
        let options = ["--fs-group", "5", "--option", "noatime"];
        let volume = StagedVolume::with(delegate, &options);
        let unused = identities(&volume.entry());
        assert_done(volume.try_stage(&volume.target, volume.device.path(), &options));
        assert_eq!(identities(&volume.entry()), unused);

        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        let before = identities(&volume.entry());
        assert_done(volume.try_stage(&volume.target, volume.device.path(), &options));
        assert_eq!(identities(&volume.entry()), before);
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
    }

    fn staging_a_volume_in_use_with_changes_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage("pod-a", "pv-1", &device, &["--fs-group", "5"]);
        let sandbox = node.sandbox("pod-a");
        let before = identities(&node.entry(&target));
        let refused = |run| {
            assert_error(run, "FAILED_PRECONDITION", &["pv-1", sandbox.id(), "pod-a"]);
            assert_eq!(identities(&node.entry(&target)), before);
        };
        refused(node.try_stage(&target, other.path(), &["--fs-group", "5"]));
        refused(node.try_stage(&target, device.path(), &["--fs-group", "6"]));
        refused(node.try_stage(&target, device.path(), &[]));
        refused(node.try_stage(&target, device.path(), &["--fs-group", "5", "--read-only"]));

        sandbox.stop();
        let _ = sandbox.delete().success();
        assert_done(node.try_stage(&target, other.path(), &[]));
        assert_eq!(info(&node, &target)["device"], json!(utf8(other.path())));
    }
}
