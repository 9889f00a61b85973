//! A container's life: docker's commands, and what the daemon does by itself.

use std::fs;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Engine as _, MountWatcher, cgroup, on_each_delegate};

use crate::scene::Scene;

const IS_A_TERMINAL: &str = "test -t 1 && cat /data/file";

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn a_volume_survives_dockers_commands(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, device, node, target } = &scene;
        let watcher = MountWatcher::start(device.path());
        let volume = scene.volume();
        let _ = docker.start_container("one", &[&volume]).success();
        assert_eq!(docker.sh("one", "echo hello > /data/file; stat -c %g /data"), "4242");

        let exec = docker.run(&["exec", "one", "/bin/sh", "-c", "cat /data/file; echo err >&2; exit 5"]);
        assert_eq!((exec.status.code(), &*exec.stdout, &*exec.stderr), (Some(5), "hello\n", "err\n"), "{exec}");
        let exec = docker.run(&["exec", "--tty", "one", "/bin/sh", "-c", IS_A_TERMINAL]).success();
        assert_eq!(exec.stdout.trim(), "hello");

        let group = docker.cgroup("one");
        let _ = docker.run(&["pause", "one"]).success();
        assert!(cgroup::is_frozen(&group), "{group}");
        let _ = node.stats(target).success();
        let _ = docker.run(&["unpause", "one"]).success();
        assert!(!cgroup::is_frozen(&group), "{group}");
        // The files of cgroup v1 and v2.
        for (limits, files, expected) in [
            (&["--pids-limit=77"][..], ["pids.max", "pids.max"], "77"),
            (&["--memory=64m", "--memory-swap=64m"], ["memory.limit_in_bytes", "memory.max"], "67108864"),
            (&["--cpus=0.5"], ["cpu.cfs_quota_us", "cpu.max"], "50000"),
        ] {
            let _ = docker.run(&[&["update"], limits, &["one"]].concat()).success();
            let directories = cgroup::directories(&group);
            let found = directories.iter().flat_map(|at| files.map(|file| fs::read_to_string(at.join(file))));
            let found: Vec<String> = found.flatten().collect();
            let has_limit = found.iter().any(|limit| limit.split_whitespace().next() == Some(expected));
            assert!(has_limit, "{limits:?}: {found:?}");
            assert_eq!(docker.sh("one", "cat /data/file"), "hello", "{limits:?}");
        }

        for (command, code) in [("restart", None), ("stop", Some("137")), ("kill", Some("137"))] {
            let flag = if command == "kill" { "--signal=KILL" } else { "-t0" };
            let _ = docker.run(&[command, flag, "one"]).success();
            if let Some(code) = code {
                docker.wait_until("one", "{{.State.Status}} {{.State.ExitCode}}", &format!("exited {code}"));
                device.wait_until_free(WAIT_TIMEOUT);
                let _ = docker.run(&["start", "one"]).success();
            }
            assert_eq!(docker.sh("one", "cat /data/file; stat -c %g /data"), "hello\n4242", "{command}");
        }

        // A container that ends by itself on SIGTERM, and writes to the volume before.
        let script = "trap 'cat /data/file > /data/stopped; exit 3' TERM; echo ready > /data/runs; sleep 2147483647 & wait";
        let detached = ["--detach", "--name=two", &volume];
        let _ = docker.run_image(&detached, &["/bin/sh", "-ec", script]).success();
        docker.wait_for_content("two", "/data/runs", "ready\n");
        let _ = docker.run(&["stop", "-t60", "two"]).success();
        docker.wait_until("two", "{{.State.Status}} {{.State.ExitCode}}", "exited 3");
        assert_eq!(docker.sh("one", "cat /data/stopped; rm /data/runs /data/stopped"), "hello");

        // A committed image has the mountpoint, but no data of the volume.
        let _ = docker.run(&["commit", "one", "committed"]).success();
        assert_eq!(docker.output_of_image("committed", &[], "ls -R /data"), "/data:\n");
        let refused = node.unstage(target).failure();
        assert!(refused.stderr.contains("it is in use by "), "{refused}");
        scene.assert_nothing_on_the_host();
        // A paused container is removed.
        let _ = docker.run(&["pause", "one"]).success();
        scene.end(&["one", "two"]);
        watcher.assert_never_mounted();
        let file = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(file, b"hello\n");
    }

    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn attached_checked_and_restarted_runs_have_the_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, node, target, .. } = &scene;
        let volume = scene.volume();
        for (flags, script, texts) in [
            (&[&*volume][..], "echo x > /data/file; cat /data/file; echo err >&2", ["x\n", "err\n"]),
            (&["--tty", &volume], IS_A_TERMINAL, ["x\r\n", ""]),
        ] {
            let run = docker.run_attached(flags, script, 7, texts);
            assert_eq!((run.status.code(), [&*run.stdout, &*run.stderr]), (Some(7), texts), "{run}");
        }

        let check = ["--health-cmd=cat /data/file", "--health-interval=100ms", "--health-retries=1"];
        let _ = docker.start_container("checked", &[&check[..], &[&volume]].concat()).success();
        docker.wait_until("checked", "{{.State.Health.Status}}", "healthy");
        let _ = docker.sh("checked", "rm /data/file");
        docker.wait_until("checked", "{{.State.Health.Status}}", "unhealthy");

        let script = "echo line >> /data/lines; test $(grep -c line /data/lines) = 3 || exit 1; exec sleep 1000";
        let policy = ["--detach", "--name=failing", "--restart=on-failure:5", &volume];
        let _ = docker.run_image(&policy, &["/bin/sh", "-ec", script]).success();
        docker.wait_for_content("failing", "/data/lines", "line\nline\nline\n");
        assert_eq!(docker.inspect("failing", "{{.RestartCount}}"), "2");
        assert_eq!(docker.sh("failing", "stat -c %g /data"), "4242");

        // docker passes on runcrust's error.
        let file = node.entry(target).join("mountInfo.json");
        let staged = fs::read(&file).unwrap();
        fs::write(&file, "{").unwrap();
        let failed = docker.start_container("refused", &[&volume]).failure();
        failed.assert_contains(&["volume pv-1: ", "isn't JSON", utf8(&node.entry(target))]);
        fs::write(&file, staged).unwrap();
        scene.assert_nothing_on_the_host();
        scene.end(&["checked", "failing", "refused"]);
    }
}
