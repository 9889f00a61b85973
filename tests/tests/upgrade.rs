//! The programs are replaced by those of another version while pods run, and restored afterwards.
//! `make upgrade-test FROM=<revision>` runs this suite with the programs of that revision as the old
//! ones. Otherwise both versions are the same, and only the replacement is tested.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::Version::{New, Old};
use runcrust_tests::container::end;
use runcrust_tests::fault_injection::traced;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{
    Containerd, CriPod, Delegate, LoopDevice, Node, Ops, POD, StagedVolume, Version,
    on_each_delegate, refusal, wait_until,
};
use serde_json::{Value, json};

/// The versions for a pod's sandbox and first app, for its second app, and for its third app and end.
type Versions = [Version; 3];

const UPGRADE: Versions = [Old, New, New];
const UPGRADE_AND_BACK: Versions = [Old, New, Old];
const DOWNGRADE: Versions = [New, Old, Old];

#[track_caller]
fn assert_nothing_left(node: &Node, device: &LoopDevice, target: &Path) {
    device.wait_until_free(WAIT_TIMEOUT);
    node.unstage_all(&[target]);
    assert_eq!(fs::read_dir(target).unwrap().count(), 0);
}

/// Runs a pod through the runtime's command line.
fn pod(delegate: Delegate, versions: Versions) {
    let volume = StagedVolume::on(
        Node::installed(delegate, versions[0], ""),
        &["--fs-group", "2000"],
    );
    let sandbox = volume.sandbox();
    let bundle = volume.app_bundle(&sandbox).write();
    let restarted = volume.run(&bundle);
    let stays = volume.app(&sandbox);
    let _ = stays.sh("echo hello > /data/file; chgrp 7 /data/file");
    let mut apps = vec![stays];
    for version in &versions[1..] {
        volume.handler().install(*version);
        for app in apps.iter().chain([&restarted]) {
            assert_eq!(app.sh("cat /data/file"), "hello", "{version:?}");
        }
        let _ = volume.stats().success();
        let _ = volume.unstage().failure();
        // kubelet stages the same content a second time when it restarts.
        let _ = volume
            .node
            .stage(POD, "pv-1", &volume.device, &["--fs-group", "2000"]);
        // The other version rewrote this bundle.
        restarted.end();
        let _ = restarted.create().success();
        let _ = restarted.start().success();
        let app = volume
            .node
            .app(&sandbox, &volume.target.join("sub"), "/data");
        assert_eq!(app.sh("echo hello > /data/file; stat -c %g /data"), "2000");
        assert_eq!(
            restarted.sh("stat -c %g /data/file"),
            "7",
            "fsGroup was applied twice"
        );
        apps.push(app);
    }
    end(apps);
    end([restarted, sandbox]);
    assert_nothing_left(&volume, &volume.device, &volume.target);
}

/// Runs a pod through the CRI. The shims call the program at the handler's path.
fn cri(delegate: Delegate, versions: Versions) {
    let node = Node::installed(delegate, versions[0], "");
    let device = node.ext4();
    let target = node.stage(POD, "pv-1", &device, &["--fs-group", "2000"]);
    let containerd = Containerd::start(node.dir(), &[("crust", &node.handler().runtime())]);
    let cri = containerd.cri();
    let pod = CriPod::run(&containerd, POD);
    let stays = pod.app("stays", &target);
    let mut last = pod.app("restarted", &target);
    let _ = cri.sh(&stays, "echo hello > /data/file; chgrp 7 /data/file");
    for (attempt, version) in (1..).zip(&versions[1..]) {
        node.handler().install(*version);
        assert_eq!(cri.sh(&stays, "cat /data/file"), "hello", "{version:?}");
        let _ = node.stats(&target).success();
        cri.stop(&last).unwrap();
        let next = pod.start(&pod.with("restarted", &target).attempt(attempt));
        cri.remove(&last).unwrap();
        assert_eq!(
            cri.sh(&next, "cat /data/file; stat -c %g /data/file"),
            "hello\n7"
        );
        last = next;
    }
    containerd.restart();
    cri.stop(&stays).unwrap();
    cri.remove(&stays).unwrap();
    pod.end_and_unstage(&node, &[&target]);
    assert!(device.is_free());
    // The next pod uses the volume.
    let target = node.stage(POD, "pv-1", &device, &["--fs-group", "2000"]);
    let pod = CriPod::with_config(&containerd, containerd.pod(POD).attempt(1));
    assert_eq!(cri.sh(&pod.app("one", &target), "cat /data/file"), "hello");
    pod.end_and_unstage(&node, &[&target]);
}

/// `crust_ops` of a given version for the volumes of a node.
struct Daemon<'a> {
    node: &'a Node,
    ops: Ops,
}

impl<'a> Daemon<'a> {
    fn new(node: &'a Node, version: Version) -> Self {
        let ops = Ops::stopped(node, "");
        let daemon = Self { node, ops };
        daemon.replace(version);
        daemon
    }

    fn replace(&self, version: Version) {
        self.ops.kill();
        let mut daemon = Command::new(self.node.handler().install_ops(version));
        daemon.args(self.ops.command().get_args());
        self.ops.spawn(daemon);
    }

    fn size(&self, target: &Path) -> i64 {
        self.ops.stats(target).expect("RuntimeGetVolumeStats").usage[0].total
    }
}

/// One version of `crust_ops` reports, expands and unstages a volume that the other one staged.
fn ops(delegate: Delegate, from: Version, to: Version) {
    let node = Node::installed(delegate, from, "");
    let daemon = Daemon::new(&node, from);
    let device = LoopDevice::formatted(node.dir(), "xfs", 320);
    let target = node.target(POD, "pv-1");
    daemon.ops.stage(stage_request(&target, &device)).unwrap();
    let sandbox = node.sandbox(POD);
    let before = daemon.size(&target);
    node.handler().install(to);
    assert_eq!(
        daemon.size(&target),
        before,
        "the old daemon must work with the new runtime"
    );
    let app = node.app(&sandbox, &target, "/data");
    daemon.replace(to);
    assert_eq!(daemon.size(&target), before);
    let repeated = daemon.ops.stage(stage_request(&target, &device));
    repeated.expect("a repeated stage request");
    device.set_size(512 << 20);
    assert_eq!(daemon.ops.expand(&target, 0, 0).unwrap(), 512 << 20);
    assert!(daemon.size(&target) > before);
    let error = daemon.ops.unstage(&target).unwrap_err();
    assert!(error.message().contains("in use"), "{error}");
    end([app, sandbox]);
    node.assert_released();
    daemon.ops.unstage(&target).unwrap();
    assert!(device.is_free() && !node.entry(&target).exists());
}

/// The runtime of one version carries out an expansion that `crust_ops` of the other one recorded.
fn recorded_expansion(delegate: Delegate, from: Version, to: Version) {
    let node = Node::installed(delegate, from, "");
    let daemon = Daemon::new(&node, from);
    let device = LoopDevice::formatted(node.dir(), "xfs", 320);
    let target = node.target(POD, "pv-1");
    daemon.ops.stage(stage_request(&target, &device)).unwrap();
    device.set_size(512 << 20);
    assert_eq!(daemon.ops.expand(&target, 0, 0).unwrap(), 512 << 20);
    node.handler().install(to);
    let sandbox = node.sandbox(POD);
    let app = node.app(&sandbox, &target, "/data");
    assert!(
        daemon.size(&target) > 400 << 20,
        "the file system must be expanded before it is mounted"
    );
    end([app, sandbox]);
    node.assert_released();
    daemon.ops.unstage(&target).unwrap();
}

on_each_delegate! {
    fn a_pod_is_upgraded(delegate: Delegate) {
        pod(delegate, UPGRADE);
    }

    fn a_pod_is_upgraded_and_back(delegate: Delegate) {
        pod(delegate, UPGRADE_AND_BACK);
    }

    fn a_pod_is_downgraded(delegate: Delegate) {
        pod(delegate, DOWNGRADE);
    }

    fn a_containerd_pod_is_upgraded(delegate: Delegate) {
        cri(delegate, UPGRADE);
    }

    fn a_containerd_pod_is_upgraded_and_back(delegate: Delegate) {
        cri(delegate, UPGRADE_AND_BACK);
    }

    fn a_containerd_pod_is_downgraded(delegate: Delegate) {
        cri(delegate, DOWNGRADE);
    }

    fn crust_ops_is_upgraded(delegate: Delegate) {
        ops(delegate, Old, New);
    }

    fn crust_ops_is_downgraded(delegate: Delegate) {
        ops(delegate, New, Old);
    }

    fn expansion_recorded_by_crust_ops_is_done_after_upgrade(delegate: Delegate) {
        recorded_expansion(delegate, Old, New);
    }

    fn expansion_recorded_by_crust_ops_is_done_after_downgrade(delegate: Delegate) {
        recorded_expansion(delegate, New, Old);
    }

    /// The program's file is replaced while the program runs.
    fn a_create_in_progress_survives_an_upgrade(delegate: Delegate) {
        let volume = StagedVolume::on(Node::installed(delegate, New, ""), &[]);
        let sandbox = volume.sandbox();
        let app = volume.container(&volume.app_bundle(&sandbox).write());
        let held = Flock::lock(File::open(app.bundle()).unwrap(), FlockArg::LockExclusive).unwrap();
        let calls = volume.dir().join("calls");
        let mut create = app.spawn(traced(&app.create_command(), "flock", &calls));
        wait_until("the create to wait for its bundle", WAIT_TIMEOUT, || {
            fs::read_to_string(&calls).is_ok_and(|calls| calls.contains("EAGAIN"))
        });
        volume.handler().install(New);
        drop(held);
        assert!(create.wait().unwrap().success(), "{:?}", app.last_log_error());
        let _ = app.start().success();
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        end([app, sandbox]);
        assert_nothing_left(&volume, &volume.device, &volume.target);
    }

    /// Covers the records in the crust directory and those in the state directory.
    fn records_of_a_later_version_with_more_fields_are_read(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&bundle);
        let records = || {
            let mut records = volume.records();
            records.retain(|record| record.extension().is_some_and(|it| it == "json"));
            assert_eq!(records.len(), 7, "expected mountInfo, target, users, owner, sandbox, two bundles: {records:?}");
            records.into_iter().map(|record| volume.dir().join(record))
        };
        let add_field = |value: &mut Value| match value {
            Value::Object(object) => drop(object.insert("ofALaterVersion".to_owned(), json!({"a": [1]}))),
            other => panic!("{other}"),
        };
        for file in records() {
            edit_record(&file, |record| {
                add_field(record);
                for list in ["users", "sources"] {
                    let elements = record.get_mut(list).and_then(Value::as_array_mut);
                    elements.into_iter().flatten().for_each(add_field);
                }
            });
        }
        let _ = volume.stats().success();
        let second = volume.app(&sandbox);
        app.end();
        let _ = app.create().success();
        let _ = app.start().success();
        let _ = app.sh("echo x > /data/file");
        end([app, second, sandbox]);
        assert_nothing_left(&volume, &volume.device, &volume.target);
    }

    fn a_record_of_an_unknown_version_is_named_in_the_error(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&bundle);
        app.end();
        let state = volume.handler().state_dir();
        let mut bundle_records = fs::read_dir(state.join("bundles")).unwrap().map(|file| file.unwrap().path());
        let bundle_record = bundle_records.find(|file| fs::read_to_string(file).unwrap().contains(bundle.id())).unwrap();
        fs::remove_file(bundle.path().join("init.pid")).unwrap();
        let new = || volume.app_bundle(&sandbox).write();
        for (file, bundle) in [
            (volume.entry().join("mountInfo.json"), new()),
            (volume.entry().join("runcrust.json"), new()),
            (state.join(format!("sandboxes/{}.json", sandbox.id())), new()),
            (bundle_record, bundle),
        ] {
            let good = fs::read(&file).unwrap();
            edit_record(&file, |record| record["version"] = json!(2));
            let refused = refusal::create_refused(&volume, &bundle);
            let _ = refused.containing(&[file.to_str().unwrap(), "version", "2"]).message();
            fs::write(&file, good).unwrap();
        }
        let _ = app.create().success();
        let _ = app.start().success();
        end([app, sandbox]);
        assert_nothing_left(&volume, &volume.device, &volume.target);
    }
}

fn edit_record(file: &Path, edit: impl FnOnce(&mut Value)) {
    let mut record = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    edit(&mut record);
    fs::write(file, record.to_string()).unwrap();
}
