//! SIGKILL for runcrust, its hook, the delegate, `crust_ops`, the containerd shim.

use std::fs;
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::interrupt::{create_killed_at, killed_at};
use runcrust_tests::node::PATIENCE;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{
    Container, Containerd, CriPod, Delegate, Node, Ops, on_each_delegate, process, wait_until,
};

use serde_json::Value;

use crate::{OTHER_POD, POD, assert_collected, collected, gc, next_works, vanish};

/// Its bundle goes with it, as a caller removes it whose create failed.
fn forget(container: Container) {
    let bundle = container.bundle().to_owned();
    // What the delegate left of it is its own.
    drop(container);
    fs::remove_dir_all(bundle).expect("its bundle");
}

/// Kills the delegate in the middle of a create; false where it was done before.
fn kill_delegate(container: &Container, delegate: Delegate) -> bool {
    let mut create = container.spawn(container.create_command());
    let pid = create.id().cast_signed();
    let program = delegate.program().canonicalize().expect("the delegate");
    let runs =
        |program: &Path| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    wait_until("runcrust to become the delegate", PATIENCE, || {
        runs(&program) || !process::is_alive(pid)
    });
    process::kill_now(pid);
    let status = create.wait().expect("waitpid");
    !status.success()
}

/// After a create that came to nothing.
#[track_caller]
fn assert_nothing_unsure(node: &Node, killed: &str) {
    let said = collected(node);
    assert_eq!(said.left, <[Value; 0]>::default(), "{killed}");
}

on_each_delegate! {
    fn a_create_at_its_steps(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        let sandbox = node.sandbox(POD);
        let target = node.stage(POD, "pv-1", &device, &[]);
        let mut killed = 0;
        // The file system is made, files are written, the view attached, the delegate exec'ed.
        for (call, nth) in [("fsmount", 1), ("renameat", 1), ("move_mount", 1), ("setns", 2), ("execve", 2)] {
            let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
            let app = node.container(&bundle);
            if create_killed_at(&app, call, nth) {
                end([app]);
                continue;
            }
            killed += 1;
            forget(app);
            assert_nothing_unsure(&node, call);
            next_works(&node, POD, &target);
        }
        assert!(killed >= 4, "{killed}");
        end([sandbox]);
        next_works(&node, OTHER_POD, &target);
        node.put_away(&[&target]);
    }

    fn the_hook_of_a_sandbox(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        for (call, nth) in [("renameat", 2), ("fsmount", 1), ("move_mount", 1)] {
            let sandbox = node.container(&node.sandbox_bundle(POD).write());
            assert!(!create_killed_at(&sandbox, call, nth), "{call} {nth}");
            forget(sandbox);
            assert_nothing_unsure(&node, call);
            next_works(&node, POD, &target);
        }
        next_works(&node, OTHER_POD, &target);
        node.put_away(&[&target]);
    }

    fn the_delegate(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let sandbox = node.sandbox(POD);
        let killed = (0..10).any(|_| {
            let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
            let app = node.container(&bundle);
            let killed = kill_delegate(&app, delegate);
            forget(app);
            killed
        });
        assert!(killed, "it was always done before");
        assert_nothing_unsure(&node, "the delegate");
        next_works(&node, POD, &target);
        end([sandbox]);
        next_works(&node, OTHER_POD, &target);
        node.put_away(&[&target]);
    }

    fn a_pod_and_all_that_it_runs(delegate: Delegate) {
        let node = Node::new(delegate);
        let (one, two) = (node.ext4(), node.ext4());
        let targets = [node.stage(POD, "pv-1", &one, &[]), node.stage(POD, "pv-2", &two, &[])];
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &targets[0], "/data");
        assert_collected(&node, &[]);
        vanish(&[&sandbox, &app]);
        assert_collected(&node, &["bundle", "record", "sandbox", "user"]);
        for target in &targets {
            let [info, record] = ["mountInfo.json", "runcrust.json"].map(|file| node.entry(target).join(file));
            assert!(info.exists() && !record.exists(), "what is staged stays");
            next_works(&node, POD, target);
        }
        node.put_away(&[&targets[0], &targets[1]]);
    }

    fn containerd_its_shims_and_its_pods(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = Containerd::start(node.dir(), &[("crust", &node.handler().runtime())]);
        let pod = CriPod::run(&containerd, POD);
        let one = pod.app("one", &target);
        let pids = [containerd.cri().pid(&one).unwrap(), pod.pid()];
        assert_collected(&node, &[]);
        let shims = containerd.shims();
        containerd.kill_daemon();
        for pid in shims.into_iter().chain(pids) {
            process::kill_now(pid);
        }
        wait_until("the pod's processes to end", PATIENCE, || !pids.into_iter().any(process::is_alive));
        // The bundles are containerd's, and there until it comes again.
        assert_collected(&node, &["record", "sandbox", "user"]);
        containerd.restart();
        let again = CriPod::of(&containerd, containerd.pod(POD).attempt(1));
        let two = again.start(&again.with("two", &target).attempt(1));
        assert_eq!(containerd.cri().sh(&two, "echo on > /data/file; cat /data/file"), "on");
        again.end();
        pod.end();
        assert_collected(&node, &["bundle"]);
        node.put_away(&[&target]);
    }
}

/// Half of a stage, whose writer's pid may be another's by the time that it is looked at.
#[test]
fn crust_ops_in_the_middle_of_a_stage() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let device = node.ext4();
    let target = node.target(POD, "pv-1");
    ops.spawn(killed_at(&ops.command(), "renameat2", 1));
    ops.stage(stage_request(&target, &device))
        .expect_err("it is killed");
    ops.kill();
    assert_collected(&node, &["leftover"]);
    assert_eq!(node.records(), <[std::path::PathBuf; 0]>::default());
    ops.spawn(ops.command());
    ops.stage(stage_request(&target, &device))
        .expect("the next");
    assert_eq!(gc(&node, &[]).removed, <[Value; 0]>::default());
}
