//! A container's life as each caller leads it (docs/callers.md), with every option in the caller's
//! own spelling: the answers are the bare delegate's, with a deferred volume too.

use runcrust_tests::{Bundle, Delegate, on_each_delegate};
use serde_json::json;

use crate::caller::Caller;
use crate::twin::Answer;
use crate::twins::Twins;

/// What an `exec` runs, as containerd and CRI-O write it into a file.
fn process_file(twins: &Twins, name: &str, args: &[&str]) {
    let process = json!({
        "terminal": false,
        "user": {"uid": 0, "gid": 0},
        "args": args,
        "env": ["PATH=/bin", "A=b"],
        "cwd": "/tmp",
    });
    for twin in twins.both() {
        std::fs::write(twin.work.join(name), process.to_string()).unwrap();
    }
}

const LIMITS: &str = r#"{"memory":{"limit":104857600},"cpu":{"shares":100},"pids":{"limit":64}}"#;

/// containerd's shim, and its delete action.
fn shim(twins: &Twins, globals: &str) {
    let shim = Caller { twins, globals };
    let _ = shim.says("state @ID").failure();
    let created = shim.says("create --bundle @BUNDLE --pid-file @PIDFILE @ID");
    let created = created.success();
    if !globals.contains("--debug") {
        let _ = created.silent();
    }
    for twin in twins.both() {
        assert!(twin.container.is_alive(), "the process of the pid file");
    }
    let again = "create --bundle @BUNDLE --pid-file @WORK/pid @ID";
    if twins.has_a_volume() {
        shim.is_refused(again);
    } else {
        let _ = shim.says(again).failure();
    }
    let _ = shim.says("state @ID").success();
    let _ = shim.says("start @ID").success();
    twins.wait_for_program("sleep");
    let _ = shim.says("start @ID").failure();
    let _ = shim.says("state @ID").success();
    let _ = shim.says("ps --format json @ID").success();
    process_file(
        twins,
        "exec.json",
        &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    let run = shim.says("exec --process @WORK/exec.json @ID").failure();
    assert_eq!(
        (run.status.code(), &*run.stdout, &*run.stderr),
        (Some(7), "out\n", "err\n")
    );
    process_file(twins, "idle.json", &["/bin/sleep", "2147483647"]);
    let _ = shim
        .says("exec --process @WORK/idle.json --detach --pid-file @WORK/exec.pid @ID")
        .success();
    let _ = shim
        .says("exec --process @WORK/missing.json --detach --pid-file @WORK/pid @ID")
        .failure();
    let _ = shim.says_at_last("pause @ID");
    twins.wait_for_the_frost();
    let _ = shim.says("state @ID").success();
    let _ = shim.says("resume @ID").success();
    let _ = shim.gives(LIMITS, "update --resources=- @ID").success();
    let _ = shim.gives("nonsense", "update --resources=- @ID").failure();
    let _ = shim.says("events --stats NOBODY").failure();
    let _ = shim.says("kill @ID 0").success();
    let _ = shim.says("delete @ID").failure();
    let _ = shim.says("kill --all @ID 9").success();
    twins.wait_for_the_end();
    let _ = shim.says("kill @ID 9");
    let _ = shim.says("ps --format json @ID");
    let _ = shim.says("exec --process @WORK/exec.json @ID").failure();
    let _ = shim.says("state @ID").success();
    let _ = shim.says("delete @ID").success();
    let _ = shim.says("delete @ID").failure();
    let _ = shim.says("delete --force @ID").success();
    let _ = shim.says("kill --all @ID 9").failure();
    let _ = shim.says("state @ID").failure();
}

/// conmon for podman and CRI-O, and what these call themselves.
fn conmon(twins: &Twins, globals: &str) {
    let conmon = Caller { twins, globals };
    let _ = conmon
        .says("create --bundle @BUNDLE --pid-file @PIDFILE --no-new-keyring @ID")
        .success()
        .silent();
    let engine = Caller {
        twins,
        globals: "--root @ROOT",
    };
    let _ = engine.says("state @ID").success();
    let _ = engine.says("start @ID").success();
    twins.wait_for_program("sleep");
    // Several containers come in the order of a directory.
    if !twins.has_a_volume() {
        let _ = engine.says("list").success();
        let _ = engine.says("list --format json").success();
        let _ = engine.says("list -q").success();
    }
    process_file(twins, "exec.json", &["/bin/sh", "-c", "pwd; env; exit 3"]);
    let run = engine.says("exec --process @WORK/exec.json @ID").failure();
    assert_eq!(run.status.code(), Some(3));
    assert!(
        run.stdout.starts_with("/tmp\n") && run.stdout.contains("A=b\n"),
        "{run:?}"
    );
    process_file(twins, "idle.json", &["/bin/sleep", "2147483647"]);
    let detached =
        conmon.says("exec --pid-file @WORK/exec.pid --process @WORK/idle.json --detach @ID");
    let _ = detached.success().silent();
    for twin in twins.both() {
        std::fs::write(twin.work.join("limits"), LIMITS).unwrap();
    }
    let _ = engine.gives(LIMITS, "update --resources - @ID").success();
    let _ = engine.says("update --resources=@WORK/limits @ID").success();
    let _ = engine
        .says("update --resources=@WORK/missing @ID")
        .failure();
    let _ = engine.says("kill -a @ID 15").success();
    let _ = engine.says("kill @ID NOSUCHSIGNAL");
    let _ = engine.says("kill --all @ID KILL").success();
    twins.wait_for_the_end();
    let _ = engine.says("delete --force @ID").success();
    let _ = engine.says("delete --force @ID").success();
}

fn idle(bundle: Bundle) -> Bundle {
    bundle
}

/// A container that criu can save: it holds no descriptors of files that aren't its own, and goes on when criu
/// interrupts its system call (Debian 13's busybox takes that for the end of a `sleep`).
fn apart(bundle: Bundle) -> Bundle {
    bundle.script("exec </dev/null >/dev/null 2>&1; exec tail -f /dev/null")
}

/// The answers to a `checkpoint` that leaves the container running, to one that ends it, and to the
/// `restore` after that.
fn checkpoint_and_restore(delegate: Delegate) -> [Answer; 3] {
    let twins = Twins::plain(delegate, apart);
    let shim = Caller {
        twins: &twins,
        globals: SHIM,
    };
    let _ = shim
        .says("create --bundle @BUNDLE --pid-file @PIDFILE @ID")
        .success();
    let _ = shim.says("start @ID").success();
    twins.wait_for_program("tail\0");
    let paths = "--image-path @WORK/image --work-path @WORK/work";
    let running = shim.says(&format!("checkpoint {paths} --leave-running @ID"));
    let _ = shim.says("state @ID").success();
    let saved = shim.says(&format!("checkpoint {paths} @ID"));
    let _ = shim.says("state @ID");
    // With criu's own path, and with one that is nothing.
    let _ = shim.says(&format!("--criu /usr/sbin/criu checkpoint {paths} @ID"));
    let _ = shim.says(&format!("--criu /no/such/criu checkpoint {paths} @ID"));
    let _ = twins.answers("--root @ROOT kill @ID KILL");
    twins.wait_for_the_end();
    let _ = shim.says("delete --force @ID").success();
    let restore = format!("restore {paths} --detach --pid-file @PIDFILE");
    let no_subreaper = format!("{restore} -no-subreaper --bundle @BUNDLE @ID");
    let restored = match delegate {
        Delegate::Runc => {
            let _ = shim
                .says(&format!("{restore} --bundle /no/such/bundle @ID"))
                .failure();
            shim.says(&no_subreaper)
        }
        Delegate::Crun => {
            // Neither knows an option with one dash and several letters.
            shim.is_refused(&no_subreaper);
            shim.says(&format!("{restore} --bundle @BUNDLE @ID"))
        }
    };
    let _ = shim.says("state @ID");
    // There is one of that name, or there is none.
    let _ = shim.says(&format!("{restore} --bundle @BUNDLE @ID"));
    let _ = shim.says("kill @ID 9");
    twins.wait_for_the_end();
    let _ = shim.says("delete --force @ID");
    [running, saved, restored]
}

const SHIM: &str = "--root @ROOT --log @LOG --log-format json";

on_each_delegate! {
    fn containerds_shim_gets_the_delegates_answers(delegate: Delegate) {
        shim(&Twins::plain(delegate, idle), SHIM);
    }

    fn containerds_shim_with_rootless_gets_the_delegates_answers(delegate: Delegate) {
        shim(&Twins::plain(delegate, idle), &format!("{SHIM} --rootless=false"));
    }

    fn containerds_shim_gets_the_delegates_debug_log(delegate: Delegate) {
        shim(&Twins::plain(delegate, idle), &format!("{SHIM} --debug"));
    }

    fn containerds_shim_sees_a_sandbox_with_a_volume_unchanged(delegate: Delegate) {
        let twins = Twins::sandboxes(delegate, idle);
        shim(&twins, SHIM);
        assert!(twins.has_a_volume());
    }

    fn containerds_shim_sees_an_app_with_a_volume_unchanged(delegate: Delegate) {
        let twins = Twins::apps(delegate, idle);
        shim(&twins, SHIM);
        assert!(twins.has_a_volume());
    }

    /// criu isn't everywhere, and doesn't work on every kernel: then all of these fail alike. Debian
    /// 12's crun has neither verb.
    fn a_checkpoint_and_a_restore_end_as_the_delegates(delegate: Delegate) {
        let _ = checkpoint_and_restore(delegate);
    }

    fn statistics_have_the_delegates_form(delegate: Delegate) {
        let twins = Twins::plain(delegate, idle);
        let shim = Caller { twins: &twins, globals: SHIM };
        let _ = shim.says("create --bundle @BUNDLE --pid-file @PIDFILE @ID").success();
        let [theirs, ours] = twins.answers(&format!("{SHIM} events --stats @ID"));
        assert_eq!((theirs.status, &theirs.stderr), (ours.status, &ours.stderr));
        // A number that is 0 is left out.
        let keys = |text: &str| {
            let value: serde_json::Value = serde_json::from_str(&text.replace('#', "0")).unwrap_or_default();
            value["data"].as_object().map(|data| data.keys().cloned().collect::<Vec<_>>())
        };
        assert_eq!(keys(&theirs.stdout), keys(&ours.stdout));
        assert_eq!(keys(&ours.stdout).is_some(), delegate == Delegate::Runc, "{ours:?}");
    }

    /// There is no systemd in a test's node: both say so.
    fn a_cgroup_manager_that_fails_fails_as_the_delegates_does(delegate: Delegate) {
        let twins = Twins::plain(delegate, idle);
        let create = "create --bundle @BUNDLE --pid-file @PIDFILE @ID";
        for globals in [
            "--root @ROOT --systemd-cgroup",
            "--root=@ROOT --log @LOG --log-format json --systemd-cgroup --debug",
            "--systemd-cgroup --root @ROOT --log @LOG",
        ] {
            let _ = twins.same(&format!("{globals} {create}")).failure();
        }
        for manager in ["systemd", "nonsense"] {
            let engine = Caller { twins: &twins, globals: "--root @ROOT --cgroup-manager" };
            match delegate {
                Delegate::Runc => engine.is_refused(&format!("{manager} {create}")),
                Delegate::Crun => drop(engine.says(&format!("{manager} {create}")).failure()),
            }
        }
    }

    fn conmon_podman_and_crio_get_the_delegates_answers(delegate: Delegate) {
        conmon(&Twins::plain(delegate, idle), "--log-format=json --log @LOG --root=@ROOT");
    }

    fn conmon_podman_and_crio_see_an_app_with_a_volume_unchanged(delegate: Delegate) {
        let twins = Twins::apps(delegate, idle);
        conmon(&twins, "--root=@ROOT");
        assert!(twins.has_a_volume());
    }
}

/// With runc: Debian 12's crun is built without criu, and Debian 13's loads libcriu.so.2, which the
/// guest hasn't.
#[test]
#[ignore = "needs criu, on a kernel that suits it; runs in the guest: make vm-test"]
fn a_checkpoint_and_a_restore_that_work_are_the_delegates() {
    for answer in checkpoint_and_restore(Delegate::Runc) {
        let _ = answer.success();
    }
}
