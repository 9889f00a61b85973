//! The delegate is called in the same way as without runcrust.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use runcrust_tests::on_each_delegate;

use crate::probe::ProbeRecord;
use crate::probed_node::{ProbedNode, os_strings};

on_each_delegate! {
    fn every_command_reaches_the_delegate_unchanged(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
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
            let seen = probed.assert_same("", &os_strings(&words));
            let mut expected = vec!["/bin/sh", probed.probe.program.to_str().unwrap()];
            expected.extend(words);
            assert_eq!(seen.fact("cmdline"), format!("{}\0", expected.join("\0")));
        }
    }

    fn unusual_arguments_are_unchanged(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        let odd = OsStr::from_bytes(b"\xff\xfe caf\xe9 \n\t\"'$(x)");
        let _ = probed.assert_same("", &[OsStr::new("state"), odd, OsStr::new(""), OsStr::new("--")]);
        let mut create = os_strings(&["create", "--pid-file"]);
        create.extend([odd, OsStr::new("--bundle"), bundle.path().as_os_str()]);
        create.push(OsStr::new("id"));
        let _ = probed.assert_same("", &create);
    }

    fn the_environment_is_the_callers(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        let script = "export PATH=/nowhere LISTEN_FDS=1 LISTEN_PID=$$ EMPTY= _LIBCONTAINER_X=1 \
                      RUST_BACKTRACE=full RUST_LOG=trace ODD=\"$(printf 'a\\377\\nb')\"";
        for arguments in [
            os_strings(&["state", "id"]),
            os_strings(&["create", "--bundle", bundle.path().to_str().unwrap(), "id"]),
        ] {
            let run = |program| probed.through(script, program, &arguments);
            let bare = run(probed.probe.program.as_path());
            let wrapped = run(probed.node.handler().path());
            // The shell's LISTEN_PID differs between runs.
            let variables = |seen: &ProbeRecord| -> Vec<String> {
                let all = seen.fact("environ").split('\0').map(str::to_owned);
                all.filter(|variable| !variable.starts_with("LISTEN_PID=")).collect()
            };
            assert_eq!(variables(&bare), variables(&wrapped));
            assert!(variables(&wrapped).contains(&"PATH=/nowhere".to_owned()));
        }
        // podman sometimes sets no PATH.
        let seen = probed.assert_same("unset PATH", &os_strings(&["state", "id"]));
        assert!(!seen.fact("environ").contains("PATH="), "{seen:#?}");
    }

    fn standard_input_is_the_delegates(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        let path = bundle.path().to_str().unwrap();
        for arguments in [
            os_strings(&["update", "--resources=-", "id"]),
            os_strings(&["create", "--bundle", path, "id"]),
        ] {
            let seen = probed.assert_same("", &arguments);
            assert_eq!(seen.fact("stdin"), "{\"memory\":{}}\n");
        }
    }

    fn the_delegates_status_and_output_are_unchanged(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let bundle = probed.bundle();
        let create = ["create", "--bundle", bundle.path().to_str().unwrap(), "id"];
        for arguments in [os_strings(&["state", "id"]), os_strings(&create)] {
            for (script, exit) in [
                ("export PROBE_EXIT=0", Some(0)),
                ("export PROBE_EXIT=1", Some(1)),
                ("export PROBE_EXIT=255", Some(255)),
                ("export PROBE_SIGNAL=KILL", None),
                ("export PROBE_SIGNAL=PIPE", None),
            ] {
                let seen = probed.assert_same(script, &arguments);
                let (status, stdout, stderr) = seen.answer();
                assert_eq!(status.code(), exit, "{script}");
                assert_eq!((stdout, stderr), ("to stdout\n", "to stderr\n"));
            }
        }
    }
}
