//! `run`, and bundles named by directory: the calls of podman's users, of buildah and of people.

use std::fs;

use runcrust_tests::{Bundle, Run, Runtime, on_each_delegate, wait_until};

use crate::compared_container::Call;
use crate::container_pair::ContainerPair;

/// Prints what the container inherits from its caller, and exits with 7.
const SCRIPT: &str = "pwd; env; umask; ulimit -a; ls /proc/self/fd; cat /proc/self/oom_score_adj; \
                      grep -E 'Uid|Gid|Groups|Umask|Sig[^Q]|Cap|NoNewPrivs|Seccomp|Cpus' /proc/self/status; \
                      cat; echo err >&2; exit 7";

fn printing(bundle: Bundle) -> Bundle {
    bundle.script(SCRIPT)
}

fn idle_bundle(bundle: Bundle) -> Bundle {
    bundle
}

/// Sets unusual values of everything that a caller passes on. SIGHUP is not ignored, because from runc 1.3 on it is a
/// race in runc whether the container ignores it. runc 1.3 requires all of the preserved descriptors to be open.
const CALLER: &str = "umask 027; trap '' USR1 PIPE; ulimit -n 512; ulimit -c 0; \
                      exec 3</dev/null 4<&3 5<&3 6<&3 7<&3";

/// Runs both containers in the foreground, and asserts their output, input and status.
fn run_in_the_foreground(pair: &ContainerPair) {
    let run = |line, shell| {
        let call = Call {
            line,
            stdin: "from the caller\n",
            exact: true,
            shell,
            ..Call::default()
        };
        let answer = pair.assert_same_call(call).failure();
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
    let _ = pair.assert_same("--root @ROOT state @ID").failure();
}

on_each_delegate! {
    fn a_foreground_container_inherits_from_the_caller(delegate: Delegate) {
        let pair = ContainerPair::plain(delegate, printing);
        run_in_the_foreground(&pair);
        assert!(!pair.has_a_volume());
    }

    fn a_foreground_container_with_a_volume_inherits_the_same(delegate: Delegate) {
        let pair = ContainerPair::apps(delegate, printing);
        run_in_the_foreground(&pair);
        assert!(pair.has_a_volume());
    }

    fn run_with_keep_keeps_the_container(delegate: Delegate) {
        for pair in [ContainerPair::plain(delegate, printing), ContainerPair::apps(delegate, printing)] {
            // crun 1.8.1 does not know --keep, and exits with EX_USAGE.
            let kept = pair.assert_same("--root @ROOT run --keep --bundle @BUNDLE @ID").failure();
            let help = Run::capture(Runtime::bare(delegate).command().args(["run", "--help"])).success();
            let code = if help.stdout.contains("--keep") { 7 } else { 64 };
            assert_eq!(kept.status.code(), Some(code), "{kept:#?}");
            let _ = pair.assert_same("--root @ROOT state @ID");
            let _ = pair.assert_same("--root @ROOT delete @ID");
            let _ = pair.assert_same("--root @ROOT state @ID").failure();
        }
    }

    fn a_detached_container_answers_as_the_delegates(delegate: Delegate) {
        for pair in [ContainerPair::plain(delegate, idle_bundle), ContainerPair::apps(delegate, idle_bundle)] {
            let run = "--root @ROOT run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let _ = pair.assert_same(run).success().silent();
            pair.wait_for_program("sleep");
            let _ = pair.assert_same("--root @ROOT state @ID").success();
            pair.end();
        }
    }

    fn a_running_container_is_deleted_by_force(delegate: Delegate) {
        for pair in [ContainerPair::plain(delegate, idle_bundle), ContainerPair::apps(delegate, idle_bundle)] {
            let run = "--root @ROOT run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let _ = pair.assert_same(run).success();
            // Before the processes have ended, the delegates may complain about cgroups in use, or not.
            for answer in pair.answers("--root @ROOT delete --force @ID") {
                let _ = answer.success();
            }
            pair.wait_until_ended();
            let _ = pair.assert_same("--root @ROOT state @ID").failure();
            let _ = pair.assert_same("--root @ROOT delete --force @ID").success().silent();
        }
    }

    fn a_killed_foreground_container_ends_as_the_delegates(delegate: Delegate) {
        for pair in [ContainerPair::plain(delegate, idle_bundle), ContainerPair::apps(delegate, idle_bundle)] {
            let run = "--root @ROOT run --bundle @BUNDLE --pid-file @PIDFILE @ID";
            let ended = std::thread::scope(|scope| {
                let answer = scope.spawn(|| pair.assert_same(run));
                for member in pair.members() {
                    wait_until("a running container", runcrust_tests::node::WAIT_TIMEOUT, || {
                        member.container.status().as_deref() == Some("running")
                    });
                    let _ = member.container.kill("KILL");
                }
                answer.join().expect("no panic")
            });
            assert_eq!(ended.status.code(), Some(137), "{ended:#?}");
        }
    }

    /// buildah calls the runtime in the bundle's directory. A person may call it in any directory.
    fn bundles_are_found_by_relative_paths(delegate: Delegate) {
        for pair in [ContainerPair::plain(delegate, idle_bundle), ContainerPair::apps(delegate, idle_bundle)] {
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
                let _ = pair.assert_same_call(call).success().silent();
                let _ = pair.assert_same("--root @ROOT state @ID").success();
                let _ = pair.assert_same("--root @ROOT start @ID").success();
                pair.wait_for_program("sleep");
                pair.end();
            }
        }
    }

    fn spec_writes_into_the_working_directory(delegate: Delegate) {
        let pair = ContainerPair::plain(delegate, idle_bundle);
        for member in pair.members() {
            fs::create_dir(member.work.join("new")).unwrap();
        }
        let call = Call { line: "spec", directory: Some("@WORK/new"), ..Call::default() };
        let _ = pair.assert_same_call(call).success();
        let [bare, wrapped] = pair.members().map(|member| fs::read(member.work.join("new/config.json")).unwrap());
        assert_eq!(bare, wrapped);
        // Fails, because the file exists now.
        let _ = pair.assert_same_call(call);
    }
}
