//! A walk that is killed in its middle is finished by the next create.

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::steps::{self, Step};
use runcrust_tests::tree::{Policy, Snapshot};
use runcrust_tests::{Container, Delegate, Node, POD, on_each_delegate, on_each_file_system};

use crate::scene::{GROUP, ON_ROOT_MISMATCH, Scene, snapshot};

/// After so many changes of a mode the walk is killed: only the walk makes so many.
const CHANGED: usize = 50;
/// Which of them depends on the kernel.
const CALLS: [&str; 2] = ["fchmodat", "fchmodat2"];

impl Scene {
    /// So far the walk got: the root isn't the group's yet, and some entries are.
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

    /// What a walk that nobody kills makes of it, but for setuid and setgid: other threads may have been
    /// between a chown and a chmod (docs/limitations.md).
    #[track_caller]
    fn assert_finished(&self, expected: Snapshot) {
        self.device.wait_until_free(WAIT_TIMEOUT);
        let comparable = |it: Snapshot| it.without_change_times().without_set_ids();
        comparable(snapshot(&self.device)).assert_is(&comparable(expected));
        self.outside.assert_unchanged();
    }
}

/// By the program that walks.
fn create_is_killed(container: &Container, program: &str) {
    let wanted = CALLS.map(|call| Step::new(program, call, CHANGED));
    let create = container.create_command();
    let ended = steps::kill_when(
        &create,
        |made| wanted.contains(made),
        |command| container.spawn(command),
    );
    assert!(ended.killed && !ended.success, "{ended:?}");
}

fn in_the_sandboxs_hook(fstype: &'static str, delegate: Delegate) {
    let scene = Scene::on(fstype, Node::new(delegate));
    let expected = scene.expected(GROUP, Policy::OnRootMismatch);
    let target = scene
        .node
        .stage(POD, "pv-1", &scene.device, &ON_ROOT_MISMATCH);
    let killed = scene
        .node
        .container(&scene.node.sandbox_bundle(POD).write());
    create_is_killed(&killed, "crust-mount-hook sandbox");
    drop(killed);
    scene.assert_half_done();

    let sandbox = scene.node.sandbox(POD);
    let app = scene.node.app(&sandbox, &target, "/data");
    end([app, sandbox]);
    scene.assert_finished(expected);
}

fn in_an_apps_create(fstype: &'static str, delegate: Delegate) {
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
    create_is_killed(&app, "runcrust");
    scene.assert_half_done();

    // The same bundle again, as a retry of the runtime's caller would.
    let _ = app.create().success();
    let _ = app.start().success();
    end([app, sandbox]);
    scene.assert_finished(expected);
}

on_each_delegate! {
    fn in_an_ext4_by_the_sandboxs_hook(delegate: Delegate) {
        in_the_sandboxs_hook("ext4", delegate);
    }

    fn in_an_ext4_by_an_apps_create(delegate: Delegate) {
        in_an_apps_create("ext4", delegate);
    }
}

on_each_file_system! {
    fn by_the_sandboxs_hook(delegate: Delegate, fstype: &'static str) {
        in_the_sandboxs_hook(fstype, delegate);
    }

    fn by_an_apps_create(delegate: Delegate, fstype: &'static str) {
        in_an_apps_create(fstype, delegate);
    }
}
