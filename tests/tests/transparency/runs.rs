//! `run`, and bundles by directory: what podman's users, buildah and people type.

use std::fs;

use runcrust_tests::{Bundle, Run, Runtime, on_each_delegate, wait_until};

use crate::twin::Call;
use crate::twins::Twins;

/// Says what it has from its caller, and ends with 7.
const SCRIPT: &str = "pwd; env; umask; ulimit -a; ls /proc/self/fd; cat /proc/self/oom_score_adj; \
                      grep -E 'Uid|Gid|Groups|Umask|Sig[^Q]|Cap|NoNewPrivs|Seccomp|Cpus' /proc/self/status; \
                      cat; echo err >&2; exit 7";

fn talking(bundle: Bundle) -> Bundle {
    bundle.script(SCRIPT)
}

fn idle(bundle: Bundle) -> Bundle {
    bundle
}

/// A caller that differs from any other in what it hands down. SIGHUP isn't ignored: whether a container has that from
/// runc 1.3 is a race of runc's own. runc 1.3 wants all the descriptors that it is to preserve.
const CALLER: &str = "umask 027; trap '' USR1 PIPE; ulimit -n 512; ulimit -c 0; \
                      exec 3</dev/null 4<&3 5<&3 6<&3 7<&3";

/// Containers that run in the foreground until they end: output, input and status are theirs.
fn run_in_the_foreground(twins: &Twins) {
    let run = |line, shell| {
        let how = Call {
            line,
            stdin: "from the caller\n",
            exact: true,
            shell,
            ..Call::default()
        };
        let answer = twins.same_call(how).failure();
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
    assert_ne!(fds.stdout, plain.stdout, "descriptors 3 to 7 are there");
    let _ = twins.same("--root @ROOT state @ID").failure();
}

on_each_delegate! {
    fn a_container_in_the_foreground_is_the_callers(delegate: Delegate) {
        let twins = Twins::plain(delegate, talking);
        run_in_the_foreground(&twins);
        assert!(!twins.has_a_volume());
    }

    fn a_container_in_the_foreground_with_a_volume_is_the_callers(delegate: Delegate) {
        let twins = Twins::apps(delegate, talking);
        run_in_the_foreground(&twins);
        assert!(twins.has_a_volume());
    }

    fn a_container_that_is_kept_after_its_run_is_kept(delegate: Delegate) {
        for twins in [Twins::plain(delegate, talking), Twins::apps(delegate, talking)] {
            // crun 1.8.1 doesn't know it, and ends with EX_USAGE.
            let kept = twins.same("--root @ROOT run --keep --bundle @BUNDLE @ID").failure();
            let help = Run::of(Runtime::bare(delegate).command().args(["run", "--help"])).success();
            let code = if help.stdout.contains("--keep") { 7 } else { 64 };
            assert_eq!(kept.status.code(), Some(code), "{kept:#?}");
            let _ = twins.same("--root @ROOT state @ID");
            let _ = twins.same("--root @ROOT delete @ID");
            let _ = twins.same("--root @ROOT state @ID").failure();
        }
    }

    fn a_detached_container_answers_as_the_delegates(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            let run = "--root @ROOT run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let _ = twins.same(run).success().silent();
            twins.wait_for_program("sleep");
            let _ = twins.same("--root @ROOT state @ID").success();
            twins.end();
        }
    }

    fn a_running_container_is_deleted_by_force(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            let run = "--root @ROOT run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let _ = twins.same(run).success();
            // In a hurry the delegates complain of cgroups that are still in use, or don't.
            for answer in twins.answers("--root @ROOT delete --force @ID") {
                let _ = answer.success();
            }
            twins.wait_for_the_end();
            let _ = twins.same("--root @ROOT state @ID").failure();
            let _ = twins.same("--root @ROOT delete --force @ID").success().silent();
        }
    }

    fn a_killed_foreground_container_ends_as_the_delegates(delegate: Delegate) {
        for twins in [Twins::plain(delegate, idle), Twins::apps(delegate, idle)] {
            let run = "--root @ROOT run --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let ended = std::thread::scope(|scope| {
                let answer = scope.spawn(|| twins.same(run));
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

    /// buildah's working directory is the bundle; people's is anywhere.
    fn bundles_are_found_from_wherever_they_are_named(delegate: Delegate) {
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
                let how = Call { line: &line, directory: Some(directory), ..Call::default() };
                let _ = twins.same_call(how).success().silent();
                let _ = twins.same("--root @ROOT state @ID").success();
                let _ = twins.same("--root @ROOT start @ID").success();
                twins.wait_for_program("sleep");
                twins.end();
            }
        }
    }

    fn a_new_configuration_is_written_where_the_caller_is(delegate: Delegate) {
        let twins = Twins::plain(delegate, idle);
        for twin in twins.both() {
            fs::create_dir(twin.work.join("new")).unwrap();
        }
        let how = Call { line: "spec", directory: Some("@WORK/new"), ..Call::default() };
        let _ = twins.same_call(how).success();
        let [theirs, ours] = twins.both().map(|twin| fs::read(twin.work.join("new/config.json")).unwrap());
        assert_eq!(theirs, ours);
        // There is one now.
        let _ = twins.same_call(how);
    }
}
