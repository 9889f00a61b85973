//! Creates in which one write fails, as on a full or broken disk. Whatever is mounted then is recorded, and the next
//! create works.

use std::fs;
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::fault_injection::create_with_error;
use runcrust_tests::{Bundle, Container, Node, POD, on_each_delegate};

use crate::scene::Scene;

/// The system calls that write records and configs, and the errors they fail with.
const FAULTS: [(&str, &str); 2] = [("renameat", "ENOSPC"), ("fsync", "EIO")];

impl Scene {
    /// Fails the first, second, … of these calls in a create, each time with a new bundle from `make`, until a create
    /// succeeds. After each failed create, asserts that a second create of the same bundle works.
    fn fail_each(
        &self,
        call: &str,
        create: impl Fn(&Container, usize) -> bool,
        make: impl Fn() -> Bundle,
    ) {
        for nth in 1.. {
            let bundle = make().write();
            let container = self.node.container(&bundle);
            let created = create(&container, nth);
            let mounts = self.device.host_mounts();
            assert_eq!(mounts, Vec::<String>::new(), "at {call} {nth}");
            if created {
                assert!(nth > 1, "{call} is never called");
                end([container]);
                return;
            }
            // Remove what the delegate left of the first container.
            drop(container);
            let second = self.node.run(&bundle);
            self.assert_works(&second);
            end([second]);
        }
    }

    /// Asserts that the volume cannot be unstaged if the sandbox has it mounted.
    #[track_caller]
    fn assert_recorded(&self, target: &Path, sandbox: &Container, context: &str) {
        if !self.device.mounts_of(sandbox.pid()).is_empty() {
            let run = self.node.unstage(target);
            assert!(
                !run.status.success(),
                "a mounted volume was unstaged, {context}"
            );
            assert!(run.stderr.contains(sandbox.id()), "{context}: {run}");
        }
    }
}

on_each_delegate! {
    fn failed_writes_in_a_create_in_a_sandbox_are_harmless(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let target = scene.stage();
        for (call, error) in FAULTS {
            // A new sandbox each time, so that the first create has to mount the volume.
            let _ = scene.unstage().success();
            let sandbox = scene.node.sandbox(POD);
            scene.stage();
            let create = |container: &Container, nth| {
                let created = create_with_error(container, call, error, nth);
                scene.assert_recorded(&target, &sandbox, &format!("{call} {nth}"));
                created
            };
            scene.fail_each(call, create, || scene.app_bundle(&sandbox));
            end([sandbox]);
        }
        scene.unstage_and_assert_clean();
    }

    /// If runcrust cannot return from the sandbox's namespace, it would use the wrong files, so it panics.
    fn a_panic_is_reported_in_the_callers_log(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let sandbox = scene.node.sandbox(POD);
        scene.stage();
        let app = scene.node.container(&scene.app_bundle(&sandbox).write());
        assert!(!create_with_error(&app, "setns", "EPERM", 2));
        let sentence = app.last_log_error().expect("a line in the log");
        assert!(sentence.contains("can't return from the mount namespace"), "{sentence}");
    }

    fn failed_writes_in_a_plain_create_are_harmless(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        scene.stage();
        for (call, error) in FAULTS {
            let create = |container: &Container, nth| create_with_error(container, call, error, nth);
            scene.fail_each(call, create, || scene.plain_bundle());
        }
        scene.unstage_and_assert_clean();
    }

    /// Some of the failures fail the sandbox's create. A volume that cannot be mounted or recorded does not.
    fn failed_writes_in_a_sandboxs_create_are_harmless(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let mut created = 0;
        for (call, error) in FAULTS {
            for nth in 1..=8 {
                let sandbox = scene.node.container(&scene.node.sandbox_bundle(POD).write());
                if create_with_error(&sandbox, call, error, nth) {
                    let _ = sandbox.start().success();
                    scene.assert_recorded(&target, &sandbox, &format!("{call} {nth}"));
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
        scene.unstage_and_assert_clean();
    }
}
