//! A create whose writes fail at any step, as on a full or broken disk: what is mounted is on record,
//! and the next create works.

use std::fs;
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::fault_injection::create_with_error;
use runcrust_tests::{Bundle, Container, Node, POD, on_each_delegate};

use crate::scene::Scene;

/// By which records and configs are written.
const FAULTS: [(&str, &str); 2] = [("renameat", "ENOSPC"), ("fsync", "EIO")];

impl Scene {
    /// Has `create` end at the first, second, … of its steps, each time with a bundle of `make`'s,
    /// until one doesn't; creates each again, and that one works.
    fn at_each(
        &self,
        step: &str,
        create: impl Fn(&Container, usize) -> bool,
        make: impl Fn() -> Bundle,
    ) {
        for nth in 1.. {
            let bundle = make().write();
            let container = self.node.container(&bundle);
            let created = create(&container, nth);
            let mounts = self.device.host_mounts();
            assert_eq!(mounts, Vec::<String>::new(), "at {step} {nth}");
            if created {
                assert!(nth > 1, "{step} is never called");
                end([container]);
                return;
            }
            // What the delegate left of it is its own.
            drop(container);
            let again = self.node.run(&bundle);
            self.assert_works(&again);
            end([again]);
        }
    }

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
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let target = scene.stage();
        for (call, error) in FAULTS {
            // Anew, so that the first of these containers finds the volume unmounted.
            let _ = scene.unstage().success();
            let sandbox = scene.node.sandbox(POD);
            scene.stage();
            let create = |container: &Container, nth| {
                let created = create_with_error(container, call, error, nth);
                scene.assert_on_record(&target, &sandbox, &format!("{call} {nth}"));
                created
            };
            scene.at_each(call, create, || scene.app_bundle(&sandbox));
            end([sandbox]);
        }
        scene.put_away();
    }

    /// It can't come back from the sandbox's namespace, and would act on the wrong files.
    fn a_panic_is_told_where_the_caller_reads(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let sandbox = scene.node.sandbox(POD);
        scene.stage();
        let app = scene.node.container(&scene.app_bundle(&sandbox).write());
        assert!(!create_with_error(&app, "setns", "EPERM", 2));
        let sentence = app.last_log_error().expect("a line in the log");
        assert!(sentence.contains("can't come back from the mount namespace"), "{sentence}");
    }

    fn a_container_without_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        scene.stage();
        for (call, error) in FAULTS {
            let create = |container: &Container, nth| create_with_error(container, call, error, nth);
            scene.at_each(call, create, || scene.plain_bundle());
        }
        scene.put_away();
    }

    /// A volume that can't be mounted, or recorded, doesn't fail the sandbox: only some of these do.
    fn a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let mut created = 0;
        for (call, error) in FAULTS {
            for nth in 1..=8 {
                let sandbox = scene.node.container(&scene.node.sandbox_bundle(POD).write());
                if create_with_error(&sandbox, call, error, nth) {
                    let _ = sandbox.start().success();
                    scene.assert_on_record(&target, &sandbox, &format!("{call} {nth}"));
                    let app = scene.app(&sandbox);
                    scene.assert_works(&app);
                    created += 1;
                    end([app, sandbox]);
                } else {
                    fs::remove_dir_all(sandbox.bundle()).unwrap();
                }
            }
        }
        assert!(created > 0);
        scene.put_away();
    }
}
