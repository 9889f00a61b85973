//! Properties that the delegate's process inherits from its caller, through runcrust.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, Node, StagedVolume, on_each_delegate,
};

use crate::probe::ProbeRecord;
use crate::probed_node::{ProbedNode, os_strings};

/// Returns a script that changes everything that a process inherits.
fn unusual_caller(probed: &ProbedNode) -> String {
    fs::create_dir_all(probed.node.dir().join("elsewhere")).unwrap();
    format!(
        "exec 3<{:?} 7>>log 9<. 5<&3\n\
         trap '' HUP USR1 PIPE TERM\n\
         umask 027\n\
         ulimit -n 512\n\
         ulimit -s 4096\n\
         ulimit -c 0\n\
         echo 432 >/proc/$$/oom_score_adj\n\
         /usr/bin/renice -n 3 -p $$ >/dev/null\n\
         /usr/bin/chrt -b -p 0 $$\n\
         /usr/bin/taskset -p 1 $$ >/dev/null\n\
         cd elsewhere",
        probed.input,
    )
}

/// Asserts that the delegate has everything that [`unusual_caller`] sets.
#[track_caller]
fn assert_unusual_caller(probed: &ProbedNode, seen: &ProbeRecord) {
    let base = probed.node.dir();
    assert_eq!(seen.fact("fd/3"), probed.input.to_str().unwrap());
    assert_eq!(seen.fact("fd/5"), probed.input.to_str().unwrap());
    assert_eq!(seen.fact("fd/7"), base.join("log").to_str().unwrap());
    assert_eq!(seen.fact("fd/9"), base.path().to_str().unwrap());
    assert_eq!(seen.fact("cwd"), base.join("elsewhere").to_str().unwrap());
    assert_eq!(seen.fact("Umask"), "0027");
    assert_eq!(seen.fact("oom_score_adj"), "432\n");
    assert_eq!((seen.fact("nice"), seen.fact("policy")), ("3", "3"));
    assert_eq!(
        seen.fact("Cpus_allowed").trim_start_matches(['0', ',']),
        "1"
    );
    // HUP is 1, USR1 10, PIPE 13, TERM 15.
    assert_eq!(ignored(seen), 0x5201);
    assert_eq!(seen.fact("SigBlk"), "0000000000000000");
}

/// Returns the ignored signals, except for 32 and 33, which the C library uses.
fn ignored(seen: &ProbeRecord) -> u64 {
    u64::from_str_radix(seen.fact("SigIgn"), 16).unwrap() & 0x7fff_ffff
}

/// Returns two calls whose config runcrust reads, and one that it passes through.
fn calls(bundle: &Bundle) -> [Vec<&OsStr>; 3] {
    let path = bundle.path().to_str().unwrap();
    [
        os_strings(&["state", "id"]),
        os_strings(&["create", "--bundle", path, "--pid-file", "p", bundle.id()]),
        os_strings(&["run", "--preserve-fds", "7", "-b", path, bundle.id()]),
    ]
}

/// Returns a node whose delegate is a probe, a running sandbox whose pod has a volume, and the bundle of an app with
/// that volume.
fn app_with_a_volume(delegate: Delegate) -> (ProbedNode, LoopDevice, Container, Bundle) {
    let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
    let app = volume.app_bundle(&sandbox).write();
    (ProbedNode::on(volume.node), volume.device, sandbox, app)
}

on_each_delegate! {
    fn descriptors_limits_priorities_and_signals_are_the_callers(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        for arguments in calls(&bundle) {
            let seen = probed.assert_same(&unusual_caller(&probed), &arguments);
            assert_unusual_caller(&probed, &seen);
        }
    }

    fn sigpipe_is_ignored_only_where_the_caller_ignores_it(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        for arguments in calls(&bundle) {
            for (script, ignored) in [("", 0), ("trap '' PIPE", 1 << 12), ("trap - PIPE", 0)] {
                let seen = probed.assert_same(script, &arguments);
                assert_eq!(self::ignored(&seen) & (1 << 12), ignored, "{script} {arguments:?}");
            }
        }
    }

    fn signals_that_the_caller_blocks_stay_blocked(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        let signals: SigSet = [Signal::SIGUSR2, Signal::SIGWINCH].into_iter().collect();
        // A child inherits the signal mask of the thread that starts it.
        let caller = || {
            signals.thread_block().expect("block signals");
            for arguments in calls(&bundle) {
                let seen = probed.assert_same("", &arguments);
                assert_eq!(seen.fact("SigBlk"), "0000000008000800", "{arguments:?}");
            }
        };
        thread::scope(|scope| scope.spawn(caller).join()).expect("no panic");
    }

    fn the_parent_death_signal_is_kept(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        let setpriv = ["--pdeathsig", "USR1", "--"];
        for call in calls(&bundle) {
            for program in [&probed.probe.program, probed.node.handler().path()] {
                let mut arguments = os_strings(&setpriv);
                arguments.push(program.as_os_str());
                arguments.extend(&call);
                let script = "export PROBE_EXEC='/usr/bin/setpriv --dump'";
                let seen = probed.through(script, Path::new("/usr/bin/setpriv"), &arguments);
                let (_, stdout, _) = seen.answer();
                assert!(stdout.contains("Parent death signal: USR1\n"), "{call:?}: {stdout}");
            }
        }
    }

    /// The caller's closed streams are not passed on, because runc 1.1.5 then gives the container a directory of the
    /// host as a standard stream.
    fn closed_standard_streams_are_dev_null_to_the_delegate(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        for arguments in calls(&bundle) {
            let run = |program| {
                let seen = probed.through("exec <&- >&- 2>&-", program, &arguments);
                seen.without(&["stdin"])
            };
            let bare = run(&probed.probe.program);
            let wrapped = run(probed.node.handler().path());
            let streams = ["fd/0", "fd/1", "fd/2"];
            for stream in streams {
                assert_eq!(wrapped.fact(stream), "/dev/null");
            }
            assert_eq!(bare.without(&streams), wrapped.without(&streams));
        }
    }

    fn open_standard_streams_are_unchanged(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        for arguments in calls(&bundle) {
            // containerd's streams for a sandbox, one pipe for two streams, and a file for all three.
            let seen = probed.assert_same("exec </dev/null >/dev/null 2</dev/null", &arguments);
            assert_eq!(seen.fact("fd/2"), "/dev/null");
            let seen = probed.assert_same("exec 2>&1", &arguments);
            assert_eq!(seen.fact("fd/2"), "a pipe");
            let seen = probed.assert_same(": >file; exec 0<>file 1>&0 2>&0", &arguments);
            assert!(seen.fact("fd/2").ends_with("/file"), "{seen:#?}");
        }
    }

    /// Only the mount namespace differs, because the volume is mounted in it.
    fn with_a_volume_the_delegate_inherits_the_same(delegate: Delegate) {
        let (probed, _device, _sandbox, app) = app_with_a_volume(delegate);
        let script = unusual_caller(&probed);
        let host = fs::read_link("/proc/self/ns/mnt").unwrap();
        for arguments in &calls(&app)[1..] {
            let bare = probed.through(&script, &probed.probe.program, arguments);
            let wrapped = probed.through(&script, probed.node.handler().path(), arguments);
            assert_eq!(bare.fact("ns/mnt"), host.to_str().unwrap());
            assert_ne!(wrapped.fact("ns/mnt"), host.to_str().unwrap());
            assert!(app.config_bytes() != app.spec().to_string().as_bytes(), "no volume was found");
            let (bare, wrapped) = (bare.without(&["ns/mnt"]), wrapped.without(&["ns/mnt"]));
            assert_eq!(bare, wrapped, "{arguments:?}");
            assert_unusual_caller(&probed, &wrapped);
        }
    }

    fn for_a_sandbox_with_a_volume_the_delegate_inherits_the_same(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let _target = node.stage("pod-a", "pv-1", &device, &[]);
        let probed = ProbedNode::on(node);
        let sandbox = probed.node.sandbox_bundle("pod-a").write();
        let script = unusual_caller(&probed);
        for arguments in &calls(&sandbox)[1..] {
            let seen = probed.assert_same(&script, arguments);
            assert_unusual_caller(&probed, &seen);
        }
        assert!(sandbox.config_bytes() != sandbox.spec().to_string().as_bytes());
    }

    /// With a volume runcrust drops capabilities, and restores them before it execs the delegate. execve(2) would restore
    /// them for an ordinary root, but not with the securebit noroot, and not as ambient capabilities.
    fn capabilities_are_the_callers(delegate: Delegate) {
        let (probed, _device, _sandbox, app) = app_with_a_volume(delegate);
        let some = "+sys_admin,+sys_chroot,+sys_ptrace,+dac_override,+chown,+fowner,+fsetid,+net_raw";
        let setpriv = Path::new("/usr/bin/setpriv");
        let plain = probed.bundle();
        for settings in [
            vec!["--bounding-set", "-net_raw,-sys_boot"],
            vec!["--bounding-set", "-sys_ptrace"],
            vec!["--inh-caps", "+net_raw,+kill", "--ambient-caps", "+kill"],
            vec!["--inh-caps", some, "--ambient-caps", some, "--securebits", "+noroot,+noroot_locked"],
            vec!["--securebits", "+no_setuid_fixup,+keep_caps_locked"],
            vec!["--no-new-privs"],
        ] {
            for call in calls(&app).iter().skip(1).chain(calls(&plain).iter().take(2)) {
                let run = |program: &Path| {
                    let mut arguments = os_strings(&settings);
                    arguments.push(OsStr::new("--"));
                    arguments.push(program.as_os_str());
                    arguments.extend(call);
                    probed.through("", setpriv, &arguments).without(&["ns/mnt"])
                };
                let bare = run(&probed.probe.program);
                let wrapped = run(probed.node.handler().path());
                assert_eq!(bare, wrapped, "{settings:?} {call:?}");
            }
            assert!(app.config_bytes() != app.spec().to_string().as_bytes(), "no volume was found");
        }
    }

    fn with_a_volume_the_death_signal_and_mask_are_kept(delegate: Delegate) {
        let (probed, _device, _sandbox, app) = app_with_a_volume(delegate);
        let signals: SigSet = [Signal::SIGUSR2].into_iter().collect();
        let caller = || {
            signals.thread_block().expect("block signals");
            let mut arguments = os_strings(&["--pdeathsig", "USR1", "--"]);
            arguments.push(probed.node.handler().path().as_os_str());
            arguments.extend(&calls(&app)[1]);
            let script = "export PROBE_EXEC='/usr/bin/setpriv --dump'";
            let seen = probed.through(script, Path::new("/usr/bin/setpriv"), &arguments);
            let (_, stdout, _) = seen.answer();
            assert!(stdout.contains("Parent death signal: USR1\n"), "{stdout}");
            assert_eq!(seen.fact("SigBlk"), "0000000000000800");
        };
        thread::scope(|scope| scope.spawn(caller).join()).expect("no panic");
    }
}
