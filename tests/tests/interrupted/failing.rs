//! A create whose writes fail at any step, as on a full or broken disk: what is mounted is on record,
//! and the next create works.

use std::fs;
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::interrupt::create_failing_at;
use runcrust_tests::{Bundle, Container, Node, on_each_delegate};

use crate::{POD, Scene, writes_a_line};

/// By which records and configs are written.
const FAULTS: [(&str, &str); 2] = [("renameat", "ENOSPC"), ("fsync", "EIO")];

impl Scene {
    /// Where the sandbox has the volume mounted, it can't be unstaged.
    #[track_caller]
    fn assert_on_record(&self, target: &Path, sandbox: &Container, context: &str) {
        if !self.device.mounts_of(sandbox.pid()).is_empty() {
            let run = self.node.unstage(target);
            assert!(!run.status.success(), "unstaged under a mount, {context}");
            assert!(run.stderr.contains(sandbox.id()), "{context}: {run}");
        }
    }
}

on_each_delegate! {
    fn a_container_in_a_sandbox(delegate: Delegate) {
        let mut lines = 0;
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let mut target = scene.stage();
        for (call, error) in FAULTS {
            // Anew, so that the first of these containers finds the volume unmounted.
            let _ = scene.node.unstage(&target).success();
            let sandbox = scene.node.sandbox(POD);
            target = scene.stage();
            let create = |container: &Container, nth| {
                let created = create_failing_at(container, call, error, nth);
                scene.assert_on_record(&target, &sandbox, &format!("{call} {nth}"));
                created
            };
            let make = || scene.node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
            lines += scene.at_each(call, create, make, writes_a_line);
            end([sandbox]);
        }
        scene.assert_nothing_left(&target, lines);
    }

    /// It can't come back from the sandbox's namespace, and would act on the wrong files.
    fn a_panic_is_told_where_the_caller_reads(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let sandbox = scene.node.sandbox(POD);
        let target = scene.stage();
        let bundle = scene.node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let app = scene.node.container(&bundle);
        assert!(!create_failing_at(&app, "setns", "EPERM", 2));
        let sentence = app.last_log_error().expect("a line in the log");
        assert!(sentence.contains("can't come back from the mount namespace"), "{sentence}");
    }

    fn a_container_without_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let mut lines = 0;
        for (call, error) in FAULTS {
            let create = |container: &Container, nth| create_failing_at(container, call, error, nth);
            let make = || Bundle::plain(scene.node.dir()).bind(&target, "/data", &[]).write();
            lines += scene.at_each(call, create, make, writes_a_line);
        }
        scene.assert_nothing_left(&target, lines);
    }

    /// A volume that can't be mounted, or recorded, doesn't fail the sandbox: only some of these do.
    fn a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let mut lines = 0;
        for (call, error) in FAULTS {
            for nth in 1..=8 {
                let sandbox = scene.node.container(&scene.node.sandbox_bundle(POD).write());
                if create_failing_at(&sandbox, call, error, nth) {
                    let _ = sandbox.start().success();
                    scene.assert_on_record(&target, &sandbox, &format!("{call} {nth}"));
                    let app = scene.node.app(&sandbox, &target, "/data");
                    writes_a_line(&app);
                    lines += 1;
                    end([app, sandbox]);
                } else {
                    fs::remove_dir_all(sandbox.bundle()).unwrap();
                }
            }
        }
        assert!(lines > 0);
        scene.assert_nothing_left(&target, lines);
    }
}
