//! How the delegate is called, compared with the same call without runcrust.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Node, on_each_delegate};

use crate::probe::{Probe, Seen};

/// A node whose delegate is a probe.
struct Probed {
    node: Node,
    probe: Probe,
    input: PathBuf,
}

impl Probed {
    fn new(delegate: Delegate) -> Self {
        let node = Node::new(delegate);
        let input = node.dir().join("input");
        fs::write(&input, "{\"memory\":{}}\n").unwrap();
        Self {
            probe: Probe::install(&node),
            node,
            input,
        }
    }

    /// A caller that gives its child this and that: it runs a script, which execs `program`.
    fn through(&self, script: &str, program: &Path, arguments: &[&OsStr]) -> Seen {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &format!("{script}\nexec \"$0\" \"$@\"")]);
        command.arg(program).args(arguments);
        command.current_dir(self.node.dir().path()).env_clear();
        self.probe.watch(&mut command, &self.input)
    }

    /// The probe sees the same with and without runcrust.
    #[track_caller]
    fn same(&self, script: &str, arguments: &[&OsStr]) -> Seen {
        let bare = self.through(script, &self.probe.program, arguments);
        let wrapped = self.through(script, self.node.handler().path(), arguments);
        assert_eq!(bare, wrapped, "bare, and by runcrust, {arguments:?}");
        wrapped
    }

    fn bundle(&self) -> Bundle {
        Bundle::plain(self.node.dir()).write()
    }
}

fn os<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

on_each_delegate! {
    fn every_command_reaches_the_delegate_unchanged(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = probed.bundle();
        let path = bundle.path().to_str().unwrap();
        let pod = probed.node.sandbox_bundle("pod-a").write();
        let sandbox = pod.path().to_str().unwrap();
        for line in [
            "",
            "--version",
            "features",
            "spec",
            "state ID",
            "--root /run/containerd/runc/k8s.io --log LOG --log-format json start ID",
            "--root=/r --systemd-cgroup --debug kill --all ID 9",
            "delete --force ID",
            "ps --format json ID",
            "update --resources=- ID",
            "exec --process F --detach --pid-file P ID",
            "checkpoint --image-path I --work-path W ID",
            "no-such-command --at-all",
            "--no-such-flag",
            "create --bundle BUNDLE --pid-file P ID",
            "--root /r --log LOG --log-format json create --bundle BUNDLE --console-socket S ID",
            "create --bundle SANDBOX --pid-file P ID",
            "run -b BUNDLE ID",
            "restore --image-path I --detach --bundle BUNDLE ID",
            "create --bundle /no/such/bundle ID",
        ] {
            let words: Vec<&str> = line
                .split_whitespace()
                .map(|word| match word {
                    "BUNDLE" => path,
                    "SANDBOX" => sandbox,
                    word => word,
                })
                .collect();
            let seen = probed.same("", &os(&words));
            let mut expected = vec!["/bin/sh", probed.probe.program.to_str().unwrap()];
            expected.extend(words);
            assert_eq!(seen.fact("cmdline"), format!("{}\0", expected.join("\0")));
        }
    }

    fn odd_arguments_are_not_touched(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = probed.bundle();
        let odd = OsStr::from_bytes(b"\xff\xfe caf\xe9 \n\t\"'$(x)");
        let _ = probed.same("", &[OsStr::new("state"), odd, OsStr::new(""), OsStr::new("--")]);
        let mut create = os(&["create", "--pid-file"]);
        create.extend([odd, OsStr::new("--bundle"), bundle.path().as_os_str()]);
        create.push(OsStr::new("id"));
        let _ = probed.same("", &create);
    }

    fn the_environment_is_the_callers(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = probed.bundle();
        let script = "export PATH=/nowhere LISTEN_FDS=1 LISTEN_PID=$$ EMPTY= _LIBCONTAINER_X=1 \
                      RUST_BACKTRACE=full RUST_LOG=trace ODD=\"$(printf 'a\\377\\nb')\"";
        for arguments in [
            os(&["state", "id"]),
            os(&["create", "--bundle", bundle.path().to_str().unwrap(), "id"]),
        ] {
            let run = |program| probed.through(script, program, &arguments);
            let bare = run(probed.probe.program.as_path());
            let wrapped = run(probed.node.handler().path());
            // LISTEN_PID is each run's own.
            let variables = |seen: &Seen| -> Vec<String> {
                let all = seen.fact("environ").split('\0').map(str::to_owned);
                all.filter(|variable| !variable.starts_with("LISTEN_PID=")).collect()
            };
            assert_eq!(variables(&bare), variables(&wrapped));
            assert!(variables(&wrapped).contains(&"PATH=/nowhere".to_owned()));
        }
        // podman gives no PATH at times.
        let seen = probed.same("unset PATH", &os(&["state", "id"]));
        assert!(!seen.fact("environ").contains("PATH="), "{seen:#?}");
    }

    fn descriptors_limits_and_signals_are_the_callers(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = probed.bundle();
        let path = bundle.path().to_str().unwrap();
        fs::create_dir(probed.node.dir().join("elsewhere")).unwrap();
        let script = format!(
            "exec 3<{:?} 7>>log 9<. 5<&3\n\
             trap '' HUP USR1 TERM\n\
             umask 027\n\
             ulimit -n 512\n\
             ulimit -s 4096\n\
             cd elsewhere",
            probed.input,
        );
        for arguments in [
            os(&["state", "id"]),
            os(&["create", "--bundle", path, "--pid-file", "p", "id"]),
            os(&["create", "--bundle", path, "--preserve-fds", "7", "id"]),
        ] {
            let seen = probed.same(&script, &arguments);
            let base = probed.node.dir();
            assert_eq!(seen.fact("fd/3"), probed.input.to_str().unwrap());
            assert_eq!(seen.fact("fd/7"), base.join("log").to_str().unwrap());
            assert_eq!(seen.fact("fd/9"), base.path().to_str().unwrap());
            assert_eq!(seen.fact("cwd"), base.join("elsewhere").to_str().unwrap());
            assert_eq!(seen.fact("Umask"), "0027");
            // HUP is 1, USR1 10, TERM 15; PIPE, which Rust programs ignore, is 13.
            let ignored = u64::from_str_radix(seen.fact("SigIgn"), 16).unwrap();
            assert_eq!(ignored & 0x5201, 0x4201, "{ignored:x}");
            assert_eq!(seen.fact("SigBlk"), "0000000000000000");
        }
    }

    fn standard_input_is_the_delegates(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = probed.bundle();
        let path = bundle.path().to_str().unwrap();
        for arguments in [
            os(&["update", "--resources=-", "id"]),
            os(&["create", "--bundle", path, "id"]),
        ] {
            let seen = probed.same("", &arguments);
            assert_eq!(seen.fact("stdin"), "{\"memory\":{}}\n");
        }
    }

    fn its_end_and_its_words_are_the_delegates(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = probed.bundle();
        let create = ["create", "--bundle", bundle.path().to_str().unwrap(), "id"];
        for arguments in [os(&["state", "id"]), os(&create)] {
            for (script, exit) in [
                ("export PROBE_EXIT=0", Some(0)),
                ("export PROBE_EXIT=1", Some(1)),
                ("export PROBE_EXIT=255", Some(255)),
                ("export PROBE_SIGNAL=KILL", None),
                ("export PROBE_SIGNAL=PIPE", None),
            ] {
                let seen = probed.same(script, &arguments);
                let (status, stdout, stderr) = seen.answer();
                assert_eq!(status.code(), exit, "{script}");
                assert_eq!((stdout, stderr), ("to stdout\n", "to stderr\n"));
            }
        }
    }

    /// A bundle that a create refuses tells them apart.
    fn only_create_run_and_restore_look_at_a_bundle(delegate: Delegate) {
        let probed = Probed::new(delegate);
        let bundle = Bundle::plain(probed.node.dir()).write_bytes(b"{\"Mounts\":[]}");
        let path = bundle.path().to_str().unwrap();
        let with_equals = format!("--bundle={path}");
        let reached = |words: &[&str]| {
            let mut command = probed.node.handler().command();
            probed.probe.is_reached(command.args(words).current_dir(bundle.path()))
        };
        for words in [
            vec!["state", "create"],
            vec!["--root", "create", "state", "id"],
            vec!["--root", "create", "--log", "create", "kill", "create", "9"],
            vec!["--log=create", "start", "create"],
            vec!["exec", "id", "create", "--bundle", path, "id"],
            vec!["exec", "--cwd", "/", "create", "run"],
            vec!["delete", "--force", "create"],
            vec!["ps", "run"],
            vec!["kill", "restore"],
            vec!["--help", "create"],
            vec!["--version", "create"],
            vec!["help", "create"],
        ] {
            assert!(reached(&words), "{words:?} is no create");
        }
        for words in [
            vec!["create", "id"],
            vec!["create", "create"],
            vec!["create", "--bundle", path, "id"],
            vec!["create", &with_equals, "id"],
            vec!["create", "-b", path, "id"],
            vec!["create", "-b", "/no/such", "--bundle", path, "id"],
            vec!["create", "--pid-file", "state", "--", "id"],
            vec!["--root", "state", "--log", "log", "--log-format", "json", "create", "id"],
            vec!["--root=state", "--systemd-cgroup", "create", "-b", path, "id"],
            vec!["run", "--bundle", path, "id"],
            vec!["run", "--detach", "-b", path, "id"],
            vec!["restore", "--image-path", "i", "--detach", "-b", path, "id"],
        ] {
            assert!(!reached(&words), "{words:?} is a create");
        }
    }
}

#[test]
fn runcs_own_spellings_of_create_are_understood() {
    let probed = Probed::new(Delegate::Runc);
    let bundle = Bundle::plain(probed.node.dir()).write_bytes(b"{\"Mounts\":[]}");
    let path = bundle.path().to_str().unwrap();
    let (one, two) = (format!("-b={path}"), format!("-bundle={path}"));
    for words in [
        vec!["create", "-bundle", path, "id"],
        vec!["create", &one, "id"],
        vec!["create", &two, "id"],
        vec!["create", "id", "--bundle", path],
        vec!["--systemd-cgroup=false", "create", "--bundle", path, "id"],
        vec!["-root", "state", "create", "--bundle", path, "id"],
        vec![
            "restore",
            "--image-path",
            "i",
            "-no-subreaper",
            "-bundle",
            path,
            "id",
        ],
    ] {
        let mut command = probed.node.handler().command();
        assert!(
            !probed.probe.is_reached(command.args(&words)),
            "{words:?} is a create"
        );
    }
}
