//! Bad entries of the crust directory: whichever container is created, and whenever it went bad.

use std::path::PathBuf;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Container, LoopDevice, Node, on_each_delegate};
use serde_json::json;

use crate::entries::{CASES, Case, Entry, Shows};
use crate::refusal::{self, Refusal, unexpected_entries, unexpected_mounts};

/// A node with one staged volume.
struct Staged {
    node: Node,
    device: LoopDevice,
    blank: LoopDevice,
    target: PathBuf,
}

impl Staged {
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

    /// The complaints about a refusal for a spoilt entry, and about what it left.
    fn judge(&self, case: &Case, entry: &Entry, refused: Refusal) -> Vec<String> {
        let wanted = case.wanted(entry);
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let refused = refused.naming_volume("pv-1").containing(&wanted);
        let mut complaints = refused.failures;
        if refused.message.contains("hunter2") {
            complaints.push("tells the secret".to_owned());
        }
        complaints.extend(unexpected_entries(&self.target));
        for complaint in &mut complaints {
            *complaint = format!("{}: {complaint}: {}", case.name, refused.message);
        }
        complaints
    }

    fn nothing_is_mounted(&self, case: &Case, pid: Option<i32>) -> Vec<String> {
        let devices = [&self.device, &self.blank];
        let lines = devices
            .into_iter()
            .flat_map(|device| unexpected_mounts(device, pid));
        lines.map(|line| format!("{}: {line}", case.name)).collect()
    }

    /// What was wrong was the entry alone.
    fn works_now(&self, sandbox: &Container) {
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
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{complaints:#?}");
}

on_each_delegate! {
    fn no_app_is_created_from_a_bad_entry(delegate: Delegate) {
        let staged = Staged::new(Node::with(delegate, "sandbox = \"always\""));
        // Its volume is staged for the pod when it has begun.
        let entry = Entry::of(&staged.node, &staged.target, &staged.blank);
        let _ = staged.node.unstage(&staged.target).success();
        let sandbox = staged.node.sandbox("pod-a");
        let mut complaints = Vec::new();
        for case in CASES {
            entry.restore();
            (case.spoil)(&entry);
            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            complaints.extend(staged.judge(case, &entry, refused));
            complaints.extend(staged.nothing_is_mounted(case, Some(sandbox.pid())));
        }
        none(&complaints);
        entry.restore();
        staged.works_now(&sandbox);
    }

    fn no_app_is_created_when_a_mounted_volumes_entry_is_bad(delegate: Delegate) {
        let staged = Staged::new(Node::new(delegate));
        let sandbox = staged.node.sandbox("pod-a");
        let entry = Entry::of(&staged.node, &staged.target, &staged.blank);
        let mut complaints = Vec::new();
        for case in CASES.iter().filter(|case| case.shows == Shows::Read) {
            (case.spoil)(&entry);
            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            complaints.extend(staged.judge(case, &entry, refused));
            complaints.extend(staged.nothing_is_mounted(case, None));
            entry.restore();
        }
        none(&complaints);
        staged.works_now(&sandbox);
    }

    fn no_sandbox_is_created_from_a_bad_entry(delegate: Delegate) {
        let staged = Staged::new(Node::new(delegate));
        let entry = Entry::of(&staged.node, &staged.target, &staged.blank);
        let mut complaints = Vec::new();
        for case in CASES.iter().filter(|case| case.shows != Shows::Mounted) {
            (case.spoil)(&entry);
            let bundle = staged.node.sandbox_bundle("pod-a").write();
            let refused = refusal::create_refused(&staged.node, &bundle);
            complaints.extend(staged.judge(case, &entry, refused));
            complaints.extend(staged.nothing_is_mounted(case, None));
            entry.restore();
        }
        none(&complaints);
        assert!(staged.device.is_free());
        staged.works_now(&staged.node.sandbox("pod-a"));
    }

    /// The delegate may lose what a hook says, so it is the app's create that reports.
    fn a_sandbox_mount_failure_is_reported_by_the_app(delegate: Delegate) {
        let staged = Staged::new(Node::new(delegate));
        let entry = Entry::of(&staged.node, &staged.target, &staged.blank);
        let mut complaints = Vec::new();
        for case in CASES.iter().filter(|case| case.shows == Shows::Mounted) {
            (case.spoil)(&entry);
            let sandbox = staged.node.sandbox("pod-a");
            let used = ["runcrust.json", "runtime-cli"].map(|name| entry.path.join(name));
            let owners = staged.node.handler().state_dir().join("owners");
            complaints.extend(used.iter().filter(|file| file.exists()).map(|file| {
                format!("{}: {} after a failed mount", case.name, file.display())
            }));
            complaints.extend(unexpected_entries(&owners));
            complaints.extend(staged.nothing_is_mounted(case, Some(sandbox.pid())));

            let refused = refusal::create_refused(&staged.node, &staged.app_bundle(&sandbox));
            complaints.extend(staged.judge(case, &entry, refused));
            complaints.extend(staged.nothing_is_mounted(case, Some(sandbox.pid())));
            entry.restore();
            // kubelet tries again, and by now all is well.
            staged.works_now(&sandbox);
            let _ = staged.node.unstage(&staged.target).success();
            let busy = [&staged.device, &staged.blank].map(LoopDevice::is_free) != [true, true];
            complaints.extend(busy.then(|| format!("{}: a device stays busy", case.name)));
            entry.restore();
        }
        none(&complaints);
    }

    /// `stage` refuses it; whoever writes the file all the same gets no second opinion of it.
    fn a_mounted_volume_that_was_made_another_is_refused(delegate: Delegate) {
        let staged = Staged::new(Node::new(delegate));
        let sandbox = staged.node.sandbox("pod-a");
        let running = staged.node.app(&sandbox, &staged.target, "/data");
        let entry = Entry::of(&staged.node, &staged.target, &staged.blank);
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
        // Another device isn't looked at: the pod has its own mounted.
        entry.set("device", json!(other.path()));
        let late = staged.node.run(&staged.app_bundle(&sandbox));
        assert_eq!(late.sh("stat -c %d /data"), running.sh("stat -c %d /data"));
        assert!(other.is_free());
        late.stop();
        let _ = late.delete().success();
        entry.restore();
        assert_eq!(running.sh("echo on > /data/file; cat /data/file"), "on");
        running.stop();
        let _ = running.delete().success();
        staged.works_now(&sandbox);
    }
}
