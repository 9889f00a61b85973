//! `run`, and bundles named by directory: the calls of podman's users, of buildah and of people.

use std::fs;

use runcrust_tests::{Bundle, Run, Runtime, on_each_delegate, wait_until};

use crate::twin::Call;
use crate::twins::Twins;

/// Prints what the container inherits from its caller, and exits with 7.
const SCRIPT: &str = "pwd; env; umask; ulimit -a; ls /proc/self/fd; cat /proc/self/oom_score_adj; \
                      grep -E 'Uid|Gid|Groups|Umask|Sig[^Q]|Cap|NoNewPrivs|Seccomp|Cpus' /proc/self/status; \
                      cat; echo err >&2; exit 7";

fn printing(bundle: Bundle) -> Bundle {
    bundle.script(SCRIPT)
}

fn idle(bundle: Bundle) -> Bundle {
    bundle
}

/// Sets unusual values of everything that a caller passes on. SIGHUP is not ignored, because from runc 1.3 on it is a
/// race in runc whether the container ignores it. runc 1.3 requires all of the preserved descriptors to be open.
const CALLER: &str = "umask 027; trap '' USR1 PIPE; ulimit -n 512; ulimit -c 0; \
                      exec 3</dev/null 4<&3 5<&3 6<&3 7<&3";

/// Runs both containers in the foreground, and asserts their output, input and status.
fn run_in_the_foreground(twins: &Twins) {
    let run = |line, shell| {
        let call = Call {
            line,
            stdin: "from the caller\n",
            exact: true,
            shell,
            ..Call::default()
        };
        let answer = twins.assert_same_call(call).failure();
        assert_eq!(answer.status.code(), Some(7), "{answer:#?}");
        assert!(answer.stdout.contains("\nfrom the caller\n"), "{answer:#?}");
        assert_eq!(answer.stderr, "err\n");
        answer
    };
    let whole =
        "--root @ROOT --log @LOG --log-format json run --bundle @BUNDLE --pid-file @PIDFILE @ID";
    let plain = run(whole, None);
    assert_eq!(plain.log, <[&str; 0]>::default());
    let _ = run(whole, Some(CALLER));
    let _ = run(
        "--root @ROOT run --no-pivot --no-new-keyring -b @BUNDLE @ID",
        None,
    );
    let fds = run("--root @ROOT run --preserve-fds 5 @ID", Some(CALLER));
    assert_ne!(
        fds.stdout, plain.stdout,
        "the container lacks descriptors 3 to 7"
    );
    let _ = twins.assert_same("--root @ROOT state @ID").failure();
}

on_each_delegate! {
    fn a_foreground_container_inherits_from_the_caller(delegate: Delegate) {
        let twins = Twins::plain(delegate, printing);
        run_in_the_foreground(&twins);
        assert!(!twins.has_a_volume());
    }

    fn a_foreground_container_with_a_volume_inherits_the_same(delegate: Delegate) {
        let twins = Twins::apps(delegate, printing);
        run_in_the_foreground(&twins);
        assert!(twins.has_a_volume());
    }

    fn run_with_keep_keeps_the_container(delegate: Delegate) {
        for twins in [Twins::plain(delegate, printing), Twins::apps(delegate, printing)] {
            // crun 1.8.1 does not know --keep, and exits with EX_USAGE.
            let kept = twins.assert_same("--root @ROOT run --keep --bundle @BUNDLE @ID").failure();
            let help = Run::of(Runtime::bare(delegate).command().args(["run", "--help"])).success();
            let code = if help.stdout.contains("--keep") { 7 } else { 64 };
            assert_eq!(kept.status.code(), Some(code), "{kept:#?}");
            let _ = twins.assert_same("--root @ROOT state @ID");
            let _ = twins.assert_same("--root @ROOT delete @ID");
            let _ = twins.assert_same("--root @ROOT state @ID").failure();
        }
    }

    fn a_detached_container_answers_as_the_delegates(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            let run = "--root @ROOT run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let _ = twins.assert_same(run).success().silent();
            twins.wait_for_program("sleep");
            let _ = twins.assert_same("--root @ROOT state @ID").success();
            twins.end();
        }
    }

    fn a_running_container_is_deleted_by_force(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            let run = "--root @ROOT run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let _ = twins.assert_same(run).success();
            // Before the processes have ended, the delegates may complain about cgroups in use, or not.
            for answer in twins.answers("--root @ROOT delete --force @ID") {
                let _ = answer.success();
            }
            twins.wait_until_ended();
            let _ = twins.assert_same("--root @ROOT state @ID").failure();
            let _ = twins.assert_same("--root @ROOT delete --force @ID").success().silent();
        }
    }

    fn a_killed_foreground_container_ends_as_the_delegates(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            let run = "--root @ROOT run --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let ended = std::thread::scope(|scope| {
                let answer = scope.spawn(|| twins.assert_same(run));
                for twin in twins.both() {
                    wait_until("a running container", runcrust_tests::node::WAIT_TIMEOUT, || {
                        twin.container.status().as_deref() == Some("running")
                    });
                    let _ = twin.container.kill("KILL");
                }
                answer.join().expect("no panic")
            });
            assert_eq!(ended.status.code(), Some(137), "{ended:#?}");
        }
    }

    /// buildah calls the runtime in the bundle's directory. A person may call it in any directory.
    fn bundles_are_found_by_relative_paths(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            for (flags, directory) in [
                ("", "@BUNDLE"),
                ("--bundle .", "@BUNDLE"),
                ("-b ../@NAME", "@BUNDLE"),
                ("--bundle @NAME", "@BUNDLE/.."),
                ("--bundle=bundles/@NAME", "@BUNDLE/../.."),
                ("-b ./bundles/../bundles/@NAME/", "@BUNDLE/../.."),
            ] {
                let line = format!("--root @ROOT --log @LOG create {flags} --pid-file @PIDFILE --no-pivot @ID");
                let call = Call { line: &line, directory: Some(directory), ..Call::default() };
                let _ = twins.assert_same_call(call).success().silent();
                let _ = twins.assert_same("--root @ROOT state @ID").success();
                let _ = twins.assert_same("--root @ROOT start @ID").success();
                twins.wait_for_program("sleep");
                twins.end();
            }
        }
    }

    fn spec_writes_into_the_working_directory(delegate: Delegate) {
        let twins = Twins::plain(delegate, idle);
        for twin in twins.both() {
            fs::create_dir(twin.work.join("new")).unwrap();
        }
        let call = Call { line: "spec", directory: Some("@WORK/new"), ..Call::default() };
        let _ = twins.assert_same_call(call).success();
        let [theirs, ours] = twins.both().map(|twin| fs::read(twin.work.join("new/config.json")).unwrap());
        assert_eq!(theirs, ours);
        // Fails, because the file exists now.
        let _ = twins.assert_same_call(call);
    }
}
