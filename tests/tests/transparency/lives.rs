//! A container's life as each caller drives it (docs/callers.md), with every option in the caller's spelling. The
//! answers are those of the bare delegate, also with a deferred volume.

use runcrust_tests::{Bundle, Delegate, on_each_delegate};
use serde_json::json;

use crate::caller::Caller;
use crate::compared_container::Answer;
use crate::container_pair::ContainerPair;

/// Writes the process of an `exec` into a file, as containerd and CRI-O do.
fn process_file(pair: &ContainerPair, name: &str, args: &[&str]) {
    let process = json!({
        "terminal": false,
        "user": {"uid": 0, "gid": 0},
        "args": args,
        "env": ["PATH=/bin", "A=b"],
        "cwd": "/tmp",
    });
    for member in pair.members() {
        std::fs::write(member.work.join(name), process.to_string()).unwrap();
    }
}

const LIMITS: &str = r#"{"memory":{"limit":104857600},"cpu":{"shares":100},"pids":{"limit":64}}"#;

/// Makes the calls of containerd's shim, and of its delete action.
fn shim(pair: &ContainerPair, globals: &str) {
    let shim = Caller { pair, globals };
    let _ = shim.call("state @ID").failure();
    let created = shim.call("create --bundle @BUNDLE --pid-file @PIDFILE @ID");
    let created = created.success();
    if !globals.contains("--debug") {
        let _ = created.silent();
    }
    for member in pair.members() {
        assert!(
            member.container.is_alive(),
            "the process in the pid file is not alive"
        );
    }
    let create_again = "create --bundle @BUNDLE --pid-file @WORK/pid @ID";
    if pair.has_a_volume() {
        shim.assert_refused(create_again);
    } else {
        let _ = shim.call(create_again).failure();
    }
    let _ = shim.call("state @ID").success();
    let _ = shim.call("start @ID").success();
    pair.wait_for_program("sleep");
    let _ = shim.call("start @ID").failure();
    let _ = shim.call("state @ID").success();
    let _ = shim.call("ps --format json @ID").success();
    process_file(
        pair,
        "exec.json",
        &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    let run = shim.call("exec --process @WORK/exec.json @ID").failure();
    assert_eq!(
        (run.status.code(), &*run.stdout, &*run.stderr),
        (Some(7), "out\n", "err\n")
    );
    process_file(pair, "idle.json", &["/bin/sleep", "2147483647"]);
    let _ = shim
        .call("exec --process @WORK/idle.json --detach --pid-file @WORK/exec.pid @ID")
        .success();
    let _ = shim
        .call("exec --process @WORK/missing.json --detach --pid-file @WORK/pid @ID")
        .failure();
    let _ = shim.call_until_success("pause @ID");
    pair.wait_until_frozen();
    let _ = shim.call("state @ID").success();
    let _ = shim.call("resume @ID").success();
    let _ = shim
        .call_with_stdin(LIMITS, "update --resources=- @ID")
        .success();
    let _ = shim
        .call_with_stdin("nonsense", "update --resources=- @ID")
        .failure();
    let _ = shim.call("events --stats NOBODY").failure();
    let _ = shim.call("kill @ID 0").success();
    let _ = shim.call("delete @ID").failure();
    let _ = shim.call("kill --all @ID 9").success();
    pair.wait_until_ended();
    let _ = shim.call("kill @ID 9");
    let _ = shim.call("ps --format json @ID");
    let _ = shim.call("exec --process @WORK/exec.json @ID").failure();
    let _ = shim.call("state @ID").success();
    let _ = shim.call("delete @ID").success();
    let _ = shim.call("delete @ID").failure();
    let _ = shim.call("delete --force @ID").success();
    let _ = shim.call("kill --all @ID 9").failure();
    let _ = shim.call("state @ID").failure();
}

/// Makes the calls that conmon makes for podman and CRI-O, and those that podman and CRI-O make themselves.
fn conmon(pair: &ContainerPair, globals: &str) {
    let conmon = Caller { pair, globals };
    let _ = conmon
        .call("create --bundle @BUNDLE --pid-file @PIDFILE --no-new-keyring @ID")
        .success()
        .silent();
    let engine = Caller {
        pair,
        globals: "--root @ROOT",
    };
    let _ = engine.call("state @ID").success();
    let _ = engine.call("start @ID").success();
    pair.wait_for_program("sleep");
    // With a volume the sandbox is listed, too, and the list is in the order of a directory's entries.
    if !pair.has_a_volume() {
        let _ = engine.call("list").success();
        let _ = engine.call("list --format json").success();
        let _ = engine.call("list -q").success();
    }
    process_file(pair, "exec.json", &["/bin/sh", "-c", "pwd; env; exit 3"]);
    let run = engine.call("exec --process @WORK/exec.json @ID").failure();
    assert_eq!(run.status.code(), Some(3));
    assert!(
        run.stdout.starts_with("/tmp\n") && run.stdout.contains("A=b\n"),
        "{run:?}"
    );
    process_file(pair, "idle.json", &["/bin/sleep", "2147483647"]);
    let detached =
        conmon.call("exec --pid-file @WORK/exec.pid --process @WORK/idle.json --detach @ID");
    let _ = detached.success().silent();
    for member in pair.members() {
        std::fs::write(member.work.join("limits"), LIMITS).unwrap();
    }
    let _ = engine
        .call_with_stdin(LIMITS, "update --resources - @ID")
        .success();
    let _ = engine.call("update --resources=@WORK/limits @ID").success();
    let _ = engine
        .call("update --resources=@WORK/missing @ID")
        .failure();
    let _ = engine.call("kill -a @ID 15").success();
    let _ = engine.call("kill @ID NOSUCHSIGNAL");
    let _ = engine.call("kill --all @ID KILL").success();
    pair.wait_until_ended();
    let _ = engine.call("delete --force @ID").success();
    let _ = engine.call("delete --force @ID").success();
}

fn idle_bundle(bundle: Bundle) -> Bundle {
    bundle
}

/// Makes a container that criu can save: it has no descriptors of files outside of it, and survives that criu
/// interrupts its system call (Debian 13's busybox `sleep` ends then).
fn checkpointable(bundle: Bundle) -> Bundle {
    bundle.script("exec </dev/null >/dev/null 2>&1; exec tail -f /dev/null")
}

/// Returns the answers to a `checkpoint` that leaves the container running, to one that ends it, and to the `restore`
/// after that.
fn checkpoint_and_restore(delegate: Delegate) -> [Answer; 3] {
    let pair = ContainerPair::plain(delegate, checkpointable);
    let shim = Caller {
        pair: &pair,
        globals: SHIM,
    };
    let _ = shim
        .call("create --bundle @BUNDLE --pid-file @PIDFILE @ID")
        .success();
    let _ = shim.call("start @ID").success();
    pair.wait_for_program("tail\0");
    let paths = "--image-path @WORK/image --work-path @WORK/work";
    let running = shim.call(&format!("checkpoint {paths} --leave-running @ID"));
    let _ = shim.call("state @ID").success();
    let saved = shim.call(&format!("checkpoint {paths} @ID"));
    let _ = shim.call("state @ID");
    // One call has the path of criu, the other a path that does not exist.
    let _ = shim.call(&format!("--criu /usr/sbin/criu checkpoint {paths} @ID"));
    let _ = shim.call(&format!("--criu /no/such/criu checkpoint {paths} @ID"));
    let _ = pair.answers("--root @ROOT kill @ID KILL");
    pair.wait_until_ended();
    let _ = shim.call("delete --force @ID").success();
    let restore = format!("restore {paths} --detach --pid-file @PIDFILE");
    let no_subreaper = format!("{restore} -no-subreaper --bundle @BUNDLE @ID");
    let restored = match delegate {
        Delegate::Runc => {
            let _ = shim
                .call(&format!("{restore} --bundle /no/such/bundle @ID"))
                .failure();
            shim.call(&no_subreaper)
        }
        Delegate::Crun => {
            // Neither runcrust nor crun accepts a long option with one dash.
            shim.assert_refused(&no_subreaper);
            shim.call(&format!("{restore} --bundle @BUNDLE @ID"))
        }
    };
    let _ = shim.call("state @ID");
    // Fails, because the container exists, or because there are no images.
    let _ = shim.call(&format!("{restore} --bundle @BUNDLE @ID"));
    let _ = shim.call("kill @ID 9");
    pair.wait_until_ended();
    let _ = shim.call("delete --force @ID");
    [running, saved, restored]
}

const SHIM: &str = "--root @ROOT --log @LOG --log-format json";

on_each_delegate! {
    fn containerds_shim_gets_the_delegates_answers(delegate: Delegate) {
        shim(&ContainerPair::plain(delegate, idle_bundle), SHIM);
    }

    fn containerds_shim_with_rootless_gets_the_delegates_answers(delegate: Delegate) {
        shim(&ContainerPair::plain(delegate, idle_bundle), &format!("{SHIM} --rootless=false"));
    }

    fn containerds_shim_gets_the_delegates_debug_log(delegate: Delegate) {
        shim(&ContainerPair::plain(delegate, idle_bundle), &format!("{SHIM} --debug"));
    }

    fn containerds_shim_sees_a_sandbox_with_a_volume_unchanged(delegate: Delegate) {
        let pair = ContainerPair::sandboxes(delegate, idle_bundle);
        shim(&pair, SHIM);
        assert!(pair.has_a_volume());
    }

    fn containerds_shim_sees_an_app_with_a_volume_unchanged(delegate: Delegate) {
        let pair = ContainerPair::apps(delegate, idle_bundle);
        shim(&pair, SHIM);
        assert!(pair.has_a_volume());
    }

    /// criu may be missing, or fail on this kernel; then the failures are compared. Debian 12's crun lacks both
    /// commands.
    fn checkpoint_and_restore_end_as_with_the_delegate(delegate: Delegate) {
        let _ = checkpoint_and_restore(delegate);
    }

    fn statistics_have_the_delegates_form(delegate: Delegate) {
        let pair = ContainerPair::plain(delegate, idle_bundle);
        let shim = Caller { pair: &pair, globals: SHIM };
        let _ = shim.call("create --bundle @BUNDLE --pid-file @PIDFILE @ID").success();
        let [bare, wrapped] = pair.answers(&format!("{SHIM} events --stats @ID"));
        assert_eq!((bare.status, &bare.stderr), (wrapped.status, &wrapped.stderr));
        // Numbers that are 0 are left out, so only keys can be compared.
        let keys = |text: &str| {
            let value: serde_json::Value = serde_json::from_str(&text.replace('#', "0")).unwrap_or_default();
            value["data"].as_object().map(|data| data.keys().cloned().collect::<Vec<_>>())
        };
        assert_eq!(keys(&bare.stdout), keys(&wrapped.stdout));
        assert_eq!(keys(&wrapped.stdout).is_some(), delegate == Delegate::Runc, "{wrapped:?}");
    }

    /// The test's node has no systemd, so both calls fail.
    fn a_failing_cgroup_manager_fails_as_with_the_delegate(delegate: Delegate) {
        let pair = ContainerPair::plain(delegate, idle_bundle);
        let create = "create --bundle @BUNDLE --pid-file @PIDFILE @ID";
        for globals in [
            "--root @ROOT --systemd-cgroup",
            "--root=@ROOT --log @LOG --log-format json --systemd-cgroup --debug",
            "--systemd-cgroup --root @ROOT --log @LOG",
        ] {
            let _ = pair.assert_same(&format!("{globals} {create}")).failure();
        }
        for manager in ["systemd", "nonsense"] {
            let engine = Caller { pair: &pair, globals: "--root @ROOT --cgroup-manager" };
            match delegate {
                Delegate::Runc => engine.assert_refused(&format!("{manager} {create}")),
                Delegate::Crun => drop(engine.call(&format!("{manager} {create}")).failure()),
            }
        }
    }

    fn conmon_podman_and_crio_get_the_delegates_answers(delegate: Delegate) {
        conmon(&ContainerPair::plain(delegate, idle_bundle), "--log-format=json --log @LOG --root=@ROOT");
    }

    fn conmon_podman_and_crio_see_a_volumes_app_unchanged(delegate: Delegate) {
        let pair = ContainerPair::apps(delegate, idle_bundle);
        conmon(&pair, "--root=@ROOT");
        assert!(pair.has_a_volume());
    }
}

/// Tested only with runc: Debian 12's crun is built without criu, and Debian 13's needs libcriu.so.2, which the guest
/// lacks.
#[test]
#[ignore = "needs criu and a kernel that supports it; runs in the guest: make vm-test"]
fn successful_checkpoint_and_restore_are_the_delegates() {
    for answer in checkpoint_and_restore(Delegate::Runc) {
        let _ = answer.success();
    }
}
