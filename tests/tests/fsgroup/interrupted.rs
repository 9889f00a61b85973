//! A walk that is killed in its middle is finished by the next create.

use std::collections::BTreeSet;

use runcrust_tests::container::end;
use runcrust_tests::interrupt::killed_at;
use runcrust_tests::node::PATIENCE;
use runcrust_tests::tree::Policy;
use runcrust_tests::{Container, Delegate, Node, on_each_delegate, on_each_file_system};

use crate::scene::{GROUP, ON_ROOT_MISMATCH, POD, Scene, snapshot};

/// At its so-manieth chown the walk is killed, before that is done: only the walk does so many.
const KILLED_AT: usize = 50;

impl Scene {
    /// So far the walk got: the root isn't the group's yet, and some entries are.
    #[track_caller]
    fn assert_half_done(&self) {
        self.device.wait_until_free(PATIENCE);
        let now = snapshot(&self.device);
        assert_eq!(now.entry("").gid, self.before.entry("").gid);
        let changed = now.entries().filter(|(path, entry)| {
            let before = self.before.entry(path);
            entry.gid == GROUP && before.gid != GROUP
        });
        // By inode: a hard link has several names.
        let changed: BTreeSet<u64> = changed.map(|(_, entry)| entry.inode).collect();
        // The chowns of the two frozen entries fail; whether they came before is up to the order in
        // which the file system lists.
        let expected = KILLED_AT - 3..KILLED_AT;
        assert!(
            expected.contains(&changed.len()),
            "{} entries",
            changed.len()
        );
    }

    /// What a walk that nobody kills makes of it.
    #[track_caller]
    fn assert_finished(&self, expected: &runcrust_tests::tree::Snapshot) {
        self.device.wait_until_free(PATIENCE);
        let now = snapshot(&self.device).without_change_times();
        now.assert_is(expected);
        self.outside.assert_unchanged();
    }
}

fn create_is_killed(container: &Container) {
    let command = killed_at(&container.create_command(), "fchownat", KILLED_AT);
    let _ = container.create_with(command).failure();
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
    create_is_killed(&killed);
    drop(killed);
    scene.assert_half_done();

    let sandbox = scene.node.sandbox(POD);
    let app = scene.node.app(&sandbox, &target, "/data");
    end([app, sandbox]);
    scene.assert_finished(&expected.without_change_times());
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
    create_is_killed(&app);
    scene.assert_half_done();

    // The same bundle again, as a retry of the runtime's caller would.
    let _ = app.create().success();
    let _ = app.start().success();
    end([app, sandbox]);
    scene.assert_finished(&expected.without_change_times());
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
