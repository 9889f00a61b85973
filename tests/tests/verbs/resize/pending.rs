//! Growth that is asked for between publish and the pod's start waits for the mount.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::{Bundle, Delegate, Node, on_each_delegate, process, wait_until};
use serde_json::{Value, json};

use super::{MIB, capacity, device, is_recorded, seen, size};
use crate::answer::assert_done;

fn grows_with_its_mount(delegate: Delegate, fstype: &'static str) {
    let node = Node::logging(delegate);
    let device = device(&node, fstype);
    let (before, after) = (size(&device), size(&device) + 256 * MIB);
    let target = node.stage("pod-a", "pv-1", &device, &["--fs-group", "2000"]);
    device.set_size(after);
    for _ in 0..2 {
        assert_eq!(capacity(node.resize(&target, after, 0)), after);
        assert!(device.is_free() && is_recorded(&node, &target));
    }
    let sandbox = node.sandbox("pod-a");
    assert!(
        !is_recorded(&node, &target),
        "it is done before the sandbox runs"
    );
    // On a full volume a walk may have no room for its changes.
    let log = node.log();
    let told = |what| log.find(what).unwrap_or_else(|| panic!("{what}: {log}"));
    assert!(
        told("grown before its use") < told("fsGroup was applied"),
        "{log}"
    );
    let app = node.app(&sandbox, &target, "/data");
    assert!(seen(&app, "/data") > before);
    assert_eq!(app.sh("stat -c %g /data"), "2000");
    assert_eq!(capacity(node.resize(&target, after, 0)), after);
    assert!(!is_recorded(&node, &target));
}

#[test]
fn the_record_stands_in_both_entries_of_a_volume_behind_a_link() {
    let node = Node::new(Delegate::Runc);
    let device = device(&node, "xfs");
    symlink(node.dir().subdir("real"), node.handler().kubelet_dir()).unwrap();
    let target = node.stage("pod-a", "pv-1", &device, &[]);
    let resolved = target.canonicalize().unwrap();
    assert_ne!(resolved, target);
    let _ = capacity(node.resize(&resolved, 5, 7 * 1024 * MIB));
    for path in [&target, &resolved] {
        let file = node.entry(path).join("resize.json");
        let record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let limits = json!({"minBytes": 5, "maxBytes": 7 * 1024 * MIB});
        let expected = json!({"version": 1, "device": device.path(), "limits": limits});
        assert_eq!(record, expected);
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&file).unwrap());
        assert_eq!(mode & 0o7777, 0o600);
    }
    let _sandbox = node.sandbox("pod-a");
    assert!(!is_recorded(&node, &target) && !is_recorded(&node, &resolved));
}

#[test]
fn it_stays_as_long_as_its_device_is_staged() {
    let node = Node::new(Delegate::Runc);
    let (first, second) = (device(&node, "ext4"), device(&node, "ext4"));
    let target = node.stage("pod-a", "pv-1", &first, &[]);
    let _ = capacity(node.resize(&target, 0, 0));
    for options in [&[][..], &["--option", "noatime"], &["--read-only"]] {
        assert_done(node.try_stage(&target, first.path(), options));
        assert!(is_recorded(&node, &target), "{options:?}");
    }
    assert_done(node.try_stage(&target, second.path(), &[]));
    assert!(!is_recorded(&node, &target));
    let _ = capacity(node.resize(&target, 0, 0));
    assert_done(node.unstage(&target));
    let _ = node.stage("pod-a", "pv-1", &second, &[]);
    assert!(!is_recorded(&node, &target));
}

on_each_delegate! {
    fn xfs_grows_before_anybody_sees_it(delegate: Delegate) {
        grows_with_its_mount(delegate, "xfs");
    }

    fn btrfs_grows_before_anybody_sees_it(delegate: Delegate) {
        grows_with_its_mount(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn ext4_grows_before_anybody_sees_it(delegate: Delegate) {
        grows_with_its_mount(delegate, "ext4");
    }

    /// Nobody can write to it any other way.
    fn it_waits_for_a_mount_that_can_be_written_to(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        device.set_size(400 * MIB);
        assert_eq!(capacity(node.resize(&target, 400 * MIB, 0)), 400 * MIB);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        for (options, grown) in [(&["--option", "ro"][..], false), (&["--read-only"], true)] {
            assert_done(node.try_stage_as("xfs", &target, device.path(), options));
            let app = node.run(&bundle);
            assert_eq!(seen(&app, "/data") > 320 * MIB, grown);
            assert_eq!(is_recorded(&node, &target), !grown);
            app.end();
            device.wait_until_free(PATIENCE);
        }
    }

    fn of_several_the_last_one_counts(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        device.set_size(640 * MIB);
        assert_eq!(capacity(node.resize(&target, 0, 500 * MIB)), 500 * MIB);
        assert_eq!(capacity(node.resize(&target, 600 * MIB, 0)), 640 * MIB);
        assert_eq!(capacity(node.resize(&target, 300 * MIB, 400 * MIB)), 400 * MIB);
        let sandbox = node.sandbox("pod-a");
        let app = node.app(&sandbox, &target, "/data");
        let now = seen(&app, "/data");
        assert!(now > 320 * MIB && now <= 400 * MIB, "{now}");
    }

    /// The sandbox's hook keeps the sentence to itself; the container's create tells it.
    fn what_cannot_be_done_any_more_fails_the_create_and_waits(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        device.set_size(480 * MIB);
        assert_eq!(capacity(node.resize(&target, 480 * MIB, 0)), 480 * MIB);
        device.set_size(400 * MIB);
        let sandbox = node.sandbox("pod-a");
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let app = node.container(&bundle);
        let _ = app.create().failure();
        let sentence = app.last_log_error().expect("a sentence");
        for name in ["volume pv-1: ", utf8(device.path()), "419430400", "503316480", "expand"] {
            assert!(sentence.contains(name), "{name:?} isn't in: {sentence}");
        }
        assert!(is_recorded(&node, &target));
        assert!(device.is_free(), "nobody has it");
        assert!(!node.entry(&target).join("runcrust.json").exists());

        device.set_size(480 * MIB);
        let app = node.run(&bundle);
        assert!(seen(&app, "/data") > 400 * MIB);
        assert!(!is_recorded(&node, &target));
    }

    fn a_record_that_cannot_be_read_fails_the_create_until_it_is_replaced(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let file = node.entry(&target).join("resize.json");
        fs::write(&file, "{\"version\":2}").unwrap();
        let sandbox = node.sandbox("pod-a");
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let app = node.container(&bundle);
        let _ = app.create().failure();
        let sentence = app.last_log_error().expect("a sentence");
        for name in ["volume pv-1: ", utf8(&file), "version"] {
            assert!(sentence.contains(name), "{name:?} isn't in: {sentence}");
        }
        assert_eq!(capacity(node.resize(&target, 0, 0)), 320 * MIB);
        let _app = node.run(&bundle);
    }

    fn a_volume_whose_users_are_all_dead_is_not_in_use(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "btrfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let (sandbox, next) = (node.sandbox("pod-a"), node.sandbox_bundle("pod-a").write());
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", PATIENCE, || !sandbox.is_alive());
        device.wait_until_free(PATIENCE);
        device.set_size(512 * MIB);
        assert_eq!(capacity(node.resize(&target, 0, 0)), 512 * MIB);
        assert!(is_recorded(&node, &target), "nobody's hook has run");
        let sandbox = node.run(&next);
        assert!(!is_recorded(&node, &target));
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(seen(&app, "/data"), 512 * MIB);
        app.end();
    }
    /// It is mounted for the container alone, and later grows there.
    fn without_a_sandbox_it_grows_with_the_containers_mount(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "xfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        device.set_size(400 * MIB);
        assert_eq!(capacity(node.resize(&target, 400 * MIB, 0)), 400 * MIB);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]);
        let app = node.run(&bundle.write());
        assert!(!is_recorded(&node, &target));
        let then = seen(&app, "/data");
        assert!(then > 320 * MIB, "{then}");
        device.set_size(640 * MIB);
        assert_eq!(capacity(node.resize(&target, 640 * MIB, 0)), 640 * MIB);
        assert!(seen(&app, "/data") > then);
        app.end();
        device.wait_until_free(PATIENCE);
    }
}
