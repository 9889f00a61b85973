//! Creates from invalid entries: of sandboxes and apps, with an entry that was damaged before or after its volume was
//! mounted.

use std::path::PathBuf;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Container, LoopDevice, Node, on_each_delegate};
use serde_json::json;

use crate::entries::{CASES, Case, DetectedWhen, Entry};
use crate::refusal::{self, Refusal, unexpected_entries, unexpected_mounts};

/// A node with one staged volume.
struct StagedNode {
    node: Node,
    device: LoopDevice,
    blank: LoopDevice,
    target: PathBuf,
}

impl StagedNode {
    fn new(node: Node) -> Self {
        let device = node.ext4();
        let target = node.stage("pod-a", "pv-1", &device, &["--fs-group", "100"]);
        Self {
            blank: LoopDevice::new(node.dir(), 8),
            node,
            device,
            target,
        }
    }

    fn app_bundle(&self, sandbox: &Container) -> Bundle {
        let bundle = self.node.app_bundle(sandbox);
        bundle.bind(&self.target, "/data", &[]).write()
    }

    /// Returns the failed expectations of a refusal for a damaged entry, and of what the refusal left.
    fn failures(&self, case: &Case, entry: &Entry, refused: Refusal) -> Vec<String> {
        let expected = case.expected(entry);
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        let refused = refused.naming_volume("pv-1").containing(&expected);
        let mut failures = refused.failures;
        if refused.message.contains("hunter2") {
            failures.push("the error contains the secret".to_owned());
        }
        failures.extend(unexpected_entries(&self.target));
        for failure in &mut failures {
            *failure = format!("{}: {failure}: {}", case.name, refused.message);
        }
        failures
    }

    fn unexpected_mounts(&self, case: &Case, pid: Option<i32>) -> Vec<String> {
        let devices = [&self.device, &self.blank];
        let lines = devices
            .into_iter()
            .flat_map(|device| unexpected_mounts(device, pid));
        lines.map(|line| format!("{}: {line}", case.name)).collect()
    }

    /// Asserts that a container in the sandbox has the volume, now that the entry is valid, and ends both containers.
    fn assert_works_and_end(&self, sandbox: &Container) {
        let app = self.node.app(sandbox, &self.target, "/data");
        assert_eq!(app.sh("stat -c %g /data"), "100");
        for container in [&app, sandbox] {
            container.stop();
            let _ = container.delete().success();
        }
        self.device.wait_until_free(WAIT_TIMEOUT);
    }
}

#[track_caller]
fn assert_none(failures: &[String]) {
    assert!(failures.is_empty(), "{failures:#?}");
}

on_each_delegate! {
    fn no_app_is_created_from_an_invalid_entry(delegate: Delegate) {
        let staged = StagedNode::new(Node::with(delegate, "sandbox = \"always\""));
        // The volume is staged after the sandbox's start, so it is not mounted.
        let entry = Entry::read(&staged.node, &staged.target, &staged.blank);
        let _ = staged.node.unstage(&staged.target).success();
        let sandbox = staged.node.sandbox("pod-a");
        let mut failures = Vec::new();
        for case in CASES {
            entry.restore();
            (case.damage)(&entry);
            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            failures.extend(staged.failures(case, &entry, refused));
            failures.extend(staged.unexpected_mounts(case, Some(sandbox.pid())));
        }
        assert_none(&failures);
        entry.restore();
        staged.assert_works_and_end(&sandbox);
    }

    fn no_app_is_created_if_a_mounted_volumes_entry_is_invalid(delegate: Delegate) {
        let staged = StagedNode::new(Node::new(delegate));
        let sandbox = staged.node.sandbox("pod-a");
        let entry = Entry::read(&staged.node, &staged.target, &staged.blank);
        let mut failures = Vec::new();
        for case in CASES.iter().filter(|case| case.detected == DetectedWhen::Read) {
            (case.damage)(&entry);
            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            failures.extend(staged.failures(case, &entry, refused));
            failures.extend(staged.unexpected_mounts(case, None));
            entry.restore();
        }
        assert_none(&failures);
        staged.assert_works_and_end(&sandbox);
    }

    fn no_sandbox_is_created_from_an_invalid_entry(delegate: Delegate) {
        let staged = StagedNode::new(Node::new(delegate));
        let entry = Entry::read(&staged.node, &staged.target, &staged.blank);
        let mut failures = Vec::new();
        for case in CASES.iter().filter(|case| case.detected != DetectedWhen::Mounted) {
            (case.damage)(&entry);
            let bundle = staged.node.sandbox_bundle("pod-a").write();
            let refused = refusal::create_refused(&staged.node, &bundle);
            failures.extend(staged.failures(case, &entry, refused));
            failures.extend(staged.unexpected_mounts(case, None));
            entry.restore();
        }
        assert_none(&failures);
        assert!(staged.device.is_free());
        staged.assert_works_and_end(&staged.node.sandbox("pod-a"));
    }

    /// A delegate may not pass on a hook's standard error, so the app's create reports the failure.
    fn a_sandbox_mount_failure_is_reported_by_the_app(delegate: Delegate) {
        let staged = StagedNode::new(Node::new(delegate));
        let entry = Entry::read(&staged.node, &staged.target, &staged.blank);
        let mut failures = Vec::new();
        for case in CASES.iter().filter(|case| case.detected == DetectedWhen::Mounted) {
            (case.damage)(&entry);
            let sandbox = staged.node.sandbox("pod-a");
            let used = ["runcrust.json", "runtime-cli"].map(|name| entry.path.join(name));
            let owners = staged.node.handler().state_dir().join("owners");
            failures.extend(used.iter().filter(|file| file.exists()).map(|file| {
                format!("{}: {} after a failed mount", case.name, file.display())
            }));
            failures.extend(unexpected_entries(&owners));
            failures.extend(staged.unexpected_mounts(case, Some(sandbox.pid())));

            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            failures.extend(staged.failures(case, &entry, refused));
            failures.extend(staged.unexpected_mounts(case, Some(sandbox.pid())));
            entry.restore();
            // kubelet retries, and now the entry is valid.
            staged.assert_works_and_end(&sandbox);
            let _ = staged.node.unstage(&staged.target).success();
            let busy = [&staged.device, &staged.blank].map(LoopDevice::is_free) != [true, true];
            failures.extend(busy.then(|| format!("{}: a device stays busy", case.name)));
            entry.restore();
        }
        assert_none(&failures);
    }

    /// `stage` refuses such a change, but the file may be written by another program.
    fn an_entry_changed_while_its_volume_is_mounted_is_refused(delegate: Delegate) {
        let staged = StagedNode::new(Node::new(delegate));
        let sandbox = staged.node.sandbox("pod-a");
        let running = staged.node.app(&sandbox, &staged.target, "/data");
        let entry = Entry::read(&staged.node, &staged.target, &staged.blank);
        let other = staged.node.ext4();
        for (field, value, names) in [
            ("fstype", json!("ext3"), &["ext4", "ext3"][..]),
            ("options", json!(["commit=9"]), &["commit=9"]),
            ("options", json!(["ro"]), &["(ro)", "(rw)"]),
        ] {
            entry.set(field, value);
            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            let _ = refused.naming_volume("pv-1").containing(names).message();
            entry.restore();
        }
        // A changed device is ignored: the pod has its own device mounted.
        entry.set("device", json!(other.path()));
        let second = staged.node.run(&staged.app_bundle(&sandbox));
        assert_eq!(second.sh("stat -c %d /data"), running.sh("stat -c %d /data"));
        assert!(other.is_free());
        second.stop();
        let _ = second.delete().success();
        entry.restore();
        assert_eq!(running.sh("echo on > /data/file; cat /data/file"), "on");
        running.stop();
        let _ = running.delete().success();
        staged.assert_works_and_end(&sandbox);
    }
}
