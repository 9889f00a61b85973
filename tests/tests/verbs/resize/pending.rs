//! Growth requested between publish and the pod's start, which happens when the volume is mounted.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{
    Delegate, Node, POD, Run, StagedVolume, on_each_delegate, process, wait_until,
};
use serde_json::{Value, json};

use super::{MIB, capacity, device, device_size, is_recorded, size_in_container, stage_new};
use crate::output::{assert_done, assert_error};

/// Runs `crust resize` without `CAP_SYS_RESOURCE`, which growing an ext4 needs.
fn resize_unprivileged(volume: &StagedVolume, min: &str) -> Run {
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-sys_resource",
        "--inh-caps=-sys_resource",
        "--",
    ]);
    command
        .arg(volume.handler().path())
        .args(["crust", "resize", utf8(&volume.target), min, "0"]);
    Run::capture(&mut command)
}

/// Returns the message of the volume's condition if that is abnormal.
#[track_caller]
fn abnormal_message(volume: &StagedVolume) -> Option<String> {
    let stats = volume.stats().success();
    let stats: Value = serde_json::from_str(&stats.stdout).expect("JSON");
    let condition = &stats["volume_condition"];
    let message = condition["message"].as_str().expect("a message").to_owned();
    condition["abnormal"]
        .as_bool()
        .expect("a boolean")
        .then_some(message)
}

fn grows_with_its_mount(delegate: Delegate, fstype: &'static str) {
    let node = Node::logging(delegate);
    let device = device(&node, fstype);
    let volume = StagedVolume::on_device(node, device, &["--fs-group", "2000"]);
    let (before, after) = (
        device_size(&volume.device),
        device_size(&volume.device) + 256 * MIB,
    );
    volume.device.set_size(after);
    for _ in 0..2 {
        assert_eq!(capacity(volume.resize(after, 0)), after);
        assert!(volume.device.is_free() && is_recorded(&volume.entry()));
    }
    let sandbox = volume.sandbox();
    assert!(
        !is_recorded(&volume.entry()),
        "the volume was not grown before the sandbox runs"
    );
    // On a full volume there may be no space for the changes of fsGroup before it has grown.
    let log = volume.log();
    let position = |what| log.find(what).unwrap_or_else(|| panic!("{what}: {log}"));
    assert!(
        position("grown before its use") < position("fsGroup was applied"),
        "{log}"
    );
    let app = volume.app(&sandbox);
    assert!(size_in_container(&app, "/data") > before);
    assert_eq!(app.sh("stat -c %g /data"), "2000");
    assert_eq!(capacity(volume.resize(after, 0)), after);
    assert!(!is_recorded(&volume.entry()));
}

#[test]
fn a_pending_resize_is_recorded_in_both_entries() {
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
    assert!(!is_recorded(&node.entry(&target)) && !is_recorded(&node.entry(&resolved)));
}

#[test]
fn a_pending_resize_is_dropped_with_its_device() {
    let node = Node::new(Delegate::Runc);
    let (first, second) = (device(&node, "ext4"), device(&node, "ext4"));
    let target = node.stage("pod-a", "pv-1", &first, &[]);
    let _ = capacity(node.resize(&target, 0, 0));
    for options in [&[][..], &["--option", "noatime"], &["--read-only"]] {
        assert_done(node.try_stage(&target, first.path(), options));
        assert!(is_recorded(&node.entry(&target)), "{options:?}");
    }
    assert_done(node.try_stage(&target, second.path(), &[]));
    assert!(!is_recorded(&node.entry(&target)));
    let _ = capacity(node.resize(&target, 0, 0));
    assert_done(node.unstage(&target));
    let _ = node.stage("pod-a", "pv-1", &second, &[]);
    assert!(!is_recorded(&node.entry(&target)));
}

on_each_delegate! {
    fn xfs_grows_before_it_is_visible(delegate: Delegate) {
        grows_with_its_mount(delegate, "xfs");
    }

    fn btrfs_grows_before_it_is_visible(delegate: Delegate) {
        grows_with_its_mount(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn ext4_grows_before_it_is_visible(delegate: Delegate) {
        grows_with_its_mount(delegate, "ext4");
    }

    /// With the option `ro` the file system itself is read-only and cannot grow; with `readOnly` only the mounts are.
    fn a_pending_resize_waits_for_a_writable_file_system(delegate: Delegate) {
        let volume = stage_new(delegate, "xfs");
        volume.device.set_size(400 * MIB);
        assert_eq!(capacity(volume.resize(400 * MIB, 0)), 400 * MIB);
        let bundle = volume.plain_bundle().write();
        for (options, grown) in [(&["--option", "ro"][..], false), (&["--read-only"], true)] {
            assert_done(volume.try_stage_as("xfs", &volume.target, volume.device.path(), options));
            let app = volume.run(&bundle);
            assert_eq!(size_in_container(&app, "/data") > 320 * MIB, grown);
            assert_eq!(is_recorded(&volume.entry()), !grown);
            app.end();
            volume.device.wait_until_free(WAIT_TIMEOUT);
        }
    }

    fn the_last_of_several_pending_resizes_applies(delegate: Delegate) {
        let volume = stage_new(delegate, "xfs");
        volume.device.set_size(640 * MIB);
        assert_eq!(capacity(volume.resize(0, 500 * MIB)), 500 * MIB);
        assert_eq!(capacity(volume.resize(600 * MIB, 0)), 640 * MIB);
        assert_eq!(capacity(volume.resize(300 * MIB, 400 * MIB)), 400 * MIB);
        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        let now = size_in_container(&app, "/data");
        assert!(now > 320 * MIB && now <= 400 * MIB, "{now}");
    }

    /// The pod starts with the volume's old size; the record is kept for the next mount, or for a resize.
    fn a_pending_resize_that_fails_does_not_fail_the_create(delegate: Delegate) {
        let node = Node::logging(delegate);
        let device = device(&node, "xfs");
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "2000"]);
        volume.device.set_size(480 * MIB);
        assert_eq!(capacity(volume.resize(480 * MIB, 0)), 480 * MIB);
        volume.device.set_size(400 * MIB);
        let sandbox = volume.sandbox();
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&bundle);
        assert!(size_in_container(&app, "/data") < 320 * MIB);
        assert_eq!(app.sh("stat -c %g /data; echo x > /data/file; cat /data/file"), "2000\nx");
        assert!(is_recorded(&volume.entry()));
        let sizes = ["419430400", "503316480"];
        let log = volume.log();
        let warned = log.lines().find(|line| line.contains("old size"));
        let warned = warned.unwrap_or_else(|| panic!("no warning: {log}"));
        let message = abnormal_message(&volume).expect("an abnormal condition");
        for name in sizes.iter().chain(&["expand", utf8(volume.device.path())]) {
            assert!(warned.contains(name), "{name:?} is missing in: {warned}");
            assert!(message.contains(name), "{name:?} is missing in: {message}");
        }

        volume.device.set_size(480 * MIB);
        assert_eq!(capacity(volume.resize(480 * MIB, 0)), 480 * MIB);
        assert!(size_in_container(&app, "/data") > 400 * MIB);
        assert!(!is_recorded(&volume.entry()));
        assert_eq!(abnormal_message(&volume), None);
        app.end();
        sandbox.end();
    }

    /// No resize is called between the two mounts.
    fn a_failed_pending_resize_is_retried_at_the_next_mount(delegate: Delegate) {
        let volume = stage_new(delegate, "btrfs");
        volume.device.set_size(512 * MIB);
        assert_eq!(capacity(volume.resize(512 * MIB, 0)), 512 * MIB);
        volume.device.set_size(300 * MIB);
        let bundle = volume.plain_bundle().write();
        for (size, grown) in [(300, false), (512, true)] {
            volume.device.set_size(size * MIB);
            let app = volume.run(&bundle);
            assert_eq!(size_in_container(&app, "/data") == 512 * MIB, grown);
            assert_eq!(is_recorded(&volume.entry()), !grown);
            assert_eq!(abnormal_message(&volume).is_none(), grown);
            app.end();
            volume.device.wait_until_free(WAIT_TIMEOUT);
        }
    }

    /// An ext4 is grown by the create that mounts it, which needs CAP_SYS_RESOURCE. A resize without this capability is
    /// refused at once and records nothing. A resize that was recorded earlier does not fail a create without it.
    fn unprivileged_ext4_growth_is_refused_unless_recorded(delegate: Delegate) {
        let volume = stage_new(delegate, "ext4");
        assert_eq!(capacity(resize_unprivileged(&volume, "0")), 64 * MIB, "no growth is needed");
        volume.device.set_size(128 * MIB);
        fs::remove_file(volume.entry().join("resize.json")).unwrap();
        let names = ["pv-1", utf8(volume.device.path()), "EPERM", "CAP_SYS_RESOURCE"];
        for min in ["0", "134217728"] {
            let refused = resize_unprivileged(&volume, min);
            assert_error(refused, "FAILED_PRECONDITION", &names);
            assert!(!is_recorded(&volume.entry()));
        }
        let limits = json!({"minBytes": 128 * MIB, "maxBytes": 0});
        let record = json!({"version": 1, "device": volume.device.path(), "limits": limits});
        fs::write(volume.entry().join("resize.json"), record.to_string()).unwrap();
        let bundle = volume.plain_bundle().write();
        let app = volume.container(&bundle);
        let mut create = Command::new("setpriv");
        create.args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "--"]);
        let inner = app.create_command();
        create.arg(inner.get_program()).args(inner.get_args());
        for (key, value) in inner.get_envs() {
            create.env(key, value.unwrap_or_default());
        }
        let _ = app.create_with(create).success();
        let _ = app.start().success();
        assert!(size_in_container(&app, "/data") <= 64 * MIB);
        assert!(is_recorded(&volume.entry()));
        let message = abnormal_message(&volume).expect("an abnormal condition");
        assert!(message.contains("CAP_SYS_RESOURCE"), "{message}");
        app.end();
    }

    /// The kernel would refuse to grow such an ext4, so resize refuses it before the mount.
    fn resizing_an_unmounted_ext4_with_errors_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = device(&node, "ext4");
        let _ = Run::capture(Command::new("debugfs").args(["-w", "-R", "ssv state 2"]).arg(device.path())).success();
        let volume = StagedVolume::on_device(node, device, &[]);
        volume.device.set_size(128 * MIB);
        let names = ["pv-1", utf8(volume.device.path()), "errors", "e2fsck"];
        assert_error(volume.resize(0, 0), "FAILED_PRECONDITION", &names);
        assert!(!is_recorded(&volume.entry()));
    }

    fn an_unreadable_growth_record_fails_the_create(delegate: Delegate) {
        let volume = stage_new(delegate, "xfs");
        let file = volume.entry().join("resize.json");
        fs::write(&file, "{\"version\":2}").unwrap();
        let sandbox = volume.sandbox();
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.container(&bundle);
        let sentence = app.expect_refusal();
        assert_contains(&sentence, &["volume pv-1: ", utf8(&file), "version"]);
        assert_eq!(capacity(volume.resize(0, 0)), 320 * MIB);
        let _app = volume.run(&bundle);
    }

    fn a_volume_whose_users_were_killed_is_not_in_use(delegate: Delegate) {
        let volume = stage_new(delegate, "btrfs");
        let (sandbox, next) = (volume.sandbox(), volume.sandbox_bundle(POD).write());
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        volume.device.wait_until_free(WAIT_TIMEOUT);
        volume.device.set_size(512 * MIB);
        assert_eq!(capacity(volume.resize(0, 0)), 512 * MIB);
        assert!(is_recorded(&volume.entry()), "the resize was not recorded");
        let sandbox = volume.run(&next);
        assert!(!is_recorded(&volume.entry()));
        let app = volume.app(&sandbox);
        assert_eq!(size_in_container(&app, "/data"), 512 * MIB);
        app.end();
    }

    /// The volume is mounted for the container alone, and can grow there later.
    fn a_pending_resize_works_without_a_sandbox(delegate: Delegate) {
        let volume = stage_new(delegate, "xfs");
        volume.device.set_size(400 * MIB);
        assert_eq!(capacity(volume.resize(400 * MIB, 0)), 400 * MIB);
        let bundle = volume.plain_bundle();
        let app = volume.run(&bundle.write());
        assert!(!is_recorded(&volume.entry()));
        let then = size_in_container(&app, "/data");
        assert!(then > 320 * MIB, "{then}");
        volume.device.set_size(640 * MIB);
        assert_eq!(capacity(volume.resize(640 * MIB, 0)), 640 * MIB);
        assert!(size_in_container(&app, "/data") > then);
        app.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
    }
}
