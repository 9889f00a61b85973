//! A create that is killed at any of its steps, in runcrust or in a hook, leaves nothing that the
//! next create of the same bundle minds, and nothing on the host.

use std::fs;

use runcrust_tests::container::end;
use runcrust_tests::interrupt::create_killed_at;
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::{Bundle, Container, Node, on_each_delegate};

use crate::{POD, Scene, writes_a_line};

/// What runcrust and its hooks change something with, in no order: records and configs, the file
/// system, the views of it, the namespaces; and the delegate's exec.
const STEPS: [&str; 8] = [
    "renameat",
    "fsopen",
    "fsmount",
    "setns",
    "unshare",
    "open_tree",
    "move_mount",
    "execve",
];

impl Scene {
    /// Kills creates of bundles that `make` gives at each of the steps, until one isn't killed any
    /// more, and creates each again, for `works` to see; how many that were.
    fn kill_everywhere(&self, make: impl Fn() -> Bundle, works: impl Fn(&Container)) -> usize {
        let steps = STEPS.into_iter();
        let killed = steps.map(|step| {
            let create = |container: &Container, nth| create_killed_at(container, step, nth);
            self.at_each(step, create, &make, &works)
        });
        killed.sum()
    }
}

on_each_delegate! {
    fn a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let node = &scene.node;
        let works = |sandbox: &Container| {
            let app = node.app(sandbox, &target, "/data");
            writes_a_line(&app);
            end([app]);
        };
        let killed = scene.kill_everywhere(|| node.sandbox_bundle(POD).write(), works);
        scene.assert_nothing_left(&target, killed);
    }

    fn a_container_in_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let sandbox = scene.node.sandbox(POD);
        // Only now, so that each container finds it unmounted until one was created.
        let target = scene.stage();
        let make = || scene.node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let killed = scene.kill_everywhere(make, writes_a_line);
        end([sandbox]);
        scene.assert_nothing_left(&target, killed);
    }

    /// However far the first create came with its records, the data is live with the second one.
    fn and_fsgroup_is_applied_once_a_pod(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        for nth in 1.. {
            let device = node.ext4();
            let first = node.sandbox(POD);
            let target = node.stage(POD, "pv-1", &device, &["--fs-group", "4242"]);
            let bundle = node.app_bundle(&first).bind(&target, "/data", &[]).write();
            let app = node.container(&bundle);
            let created = create_killed_at(&app, "renameat", nth);
            drop(app);
            let app = node.run(&bundle);
            let _ = app.sh("echo x > /data/file; chmod 600 /data/file");
            kill(first.pid());
            let second = node.sandbox(POD);
            assert_eq!(app.sh("stat -c '%g %a' /data/file"), "4242 600", "killed at renameat {nth}");
            end([app, first, second]);
            let _ = node.unstage(&target).success();
            if created {
                break;
            }
        }
    }

    fn a_container_without_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let make = || Bundle::plain(scene.node.dir()).bind(&target, "/data", &[]).write();
        let killed = scene.kill_everywhere(make, writes_a_line);
        scene.assert_nothing_left(&target, killed);
    }

    fn a_container_whose_hook_mounts(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "mount_mode = \"hook\""));
        let target = scene.stage();
        let make = || {
            let bundle = Bundle::plain(scene.node.dir()).bind(&target, "/data", &[]).write();
            fs::create_dir(bundle.rootfs().join("data")).unwrap();
            bundle
        };
        let killed = scene.kill_everywhere(make, writes_a_line);
        scene.assert_nothing_left(&target, killed);
    }
}
