//! A killed walk is completed by the next create.

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::steps::{self, Step};
use runcrust_tests::tree::{Policy, Snapshot};
use runcrust_tests::{Container, Delegate, Node, POD, on_each_delegate, on_each_file_system};

use crate::scene::{GROUP, ON_ROOT_MISMATCH, Scene, snapshot};

/// The number of mode changes after which the walk is killed. Only the walk makes that number of changes.
const CHANGED: usize = 50;
/// The calls that can change a mode. It depends on the kernel which call is used.
const CALLS: [&str; 2] = ["fchmodat", "fchmodat2"];

impl Scene {
    /// Asserts that the root does not have the group yet, but some files have.
    #[track_caller]
    fn assert_half_done(&self) {
        self.device.wait_until_free(WAIT_TIMEOUT);
        let now = snapshot(&self.device);
        assert_eq!(now.entry("").gid, self.before.entry("").gid);
        let changed = now.entries().filter(|(path, entry)| {
            let before = self.before.entry(path);
            entry.gid == GROUP && before.gid != GROUP
        });
        assert!(changed.count() > 0);
    }

    /// Asserts the result of a walk that was not killed, except for setuid and setgid: a thread may have been killed
    /// between a chown and a chmod (docs/limitations.md).
    #[track_caller]
    fn assert_finished(&self, expected: Snapshot) {
        self.device.wait_until_free(WAIT_TIMEOUT);
        let comparable = |it: Snapshot| it.without_change_times().without_set_ids();
        comparable(snapshot(&self.device)).assert_is(&comparable(expected));
        self.outside.assert_unchanged();
    }
}

/// Runs a create, and kills `program` in the middle of the walk that it makes.
fn kill_create(container: &Container, program: &str) {
    let wanted = CALLS.map(|call| Step::new(program, call, CHANGED));
    let create = container.create_command();
    let ended = steps::kill_when(
        &create,
        |made| wanted.contains(made),
        |command| container.spawn(command),
    );
    assert!(ended.killed && !ended.success, "{ended:?}");
}

fn kill_sandbox_hook(fstype: &'static str, delegate: Delegate) {
    let scene = Scene::on(fstype, Node::new(delegate));
    let expected = scene.expected(GROUP, Policy::OnRootMismatch);
    let target = scene
        .node
        .stage(POD, "pv-1", &scene.device, &ON_ROOT_MISMATCH);
    let killed = scene
        .node
        .container(&scene.node.sandbox_bundle(POD).write());
    kill_create(&killed, "crust-mount-hook sandbox");
    drop(killed);
    scene.assert_half_done();

    let sandbox = scene.node.sandbox(POD);
    let app = scene.node.app(&sandbox, &target, "/data");
    end([app, sandbox]);
    scene.assert_finished(expected);
}

fn kill_apps_create(fstype: &'static str, delegate: Delegate) {
    let scene = Scene::on(fstype, Node::with(delegate, "sandbox = \"always\""));
    let expected = scene.expected(GROUP, Policy::OnRootMismatch);
    let sandbox = scene.node.sandbox(POD);
    let target = scene
        .node
        .stage(POD, "pv-1", &scene.device, &ON_ROOT_MISMATCH);
    let bundle = scene.node.app_bundle(&sandbox);
    let app = scene
        .node
        .container(&bundle.bind(&target, "/data", &[]).write());
    kill_create(&app, "runcrust");
    scene.assert_half_done();

    // The same bundle again, as in a retry by the caller.
    let _ = app.create().success();
    let _ = app.start().success();
    end([app, sandbox]);
    scene.assert_finished(expected);
}

on_each_delegate! {
    fn a_walk_killed_in_the_sandboxs_hook_is_completed(delegate: Delegate) {
        kill_sandbox_hook("ext4", delegate);
    }

    fn a_walk_killed_in_an_apps_create_is_completed(delegate: Delegate) {
        kill_apps_create("ext4", delegate);
    }
}

on_each_file_system! {
    fn a_walk_killed_in_the_hook_is_completed_on(delegate: Delegate, fstype: &'static str) {
        kill_sandbox_hook(fstype, delegate);
    }

    fn a_walk_killed_in_a_create_is_completed_on(delegate: Delegate, fstype: &'static str) {
        kill_apps_create(fstype, delegate);
    }
}
