//! A container's life, by docker's commands and by what it does on its own.

use std::fs;

use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{MountWatcher, cgroup, on_each_delegate};

use crate::scene::Scene;

const IS_A_TERMINAL: &str = "test -t 1 && cat /data/file";

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn a_container_lives_through_dockers_commands(delegate: Delegate) {
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
        let _ = docker.run(&["update", "--pids-limit", "77", "one"]).success();
        let limits = cgroup::directories(&group).into_iter().map(|at| fs::read_to_string(at.join("pids.max")));
        assert!(limits.flatten().any(|limit| limit.trim() == "77"), "{group}");

        for (command, code) in [("restart", None), ("stop", Some("137")), ("kill", Some("137"))] {
            let at_once = if command == "kill" { "--signal=KILL" } else { "-t0" };
            let _ = docker.run(&[command, at_once, "one"]).success();
            if let Some(code) = code {
                docker.wait_until("one", "{{.State.Status}} {{.State.ExitCode}}", &format!("exited {code}"));
                device.wait_until_free(PATIENCE);
                let _ = docker.run(&["start", "one"]).success();
            }
            assert_eq!(docker.sh("one", "cat /data/file; stat -c %g /data"), "hello\n4242", "{command}");
        }

        // An image has the mount point, and nothing of the volume.
        let _ = docker.run(&["commit", "one", "committed"]).success();
        let list = ["run", "--rm", "--runtime=crust", "committed", "/bin/ls", "/data"];
        assert_eq!(docker.run(&list).success().stdout, "");
        let refused = node.unstage(target).failure();
        assert!(refused.stderr.contains("it is in use by "), "{refused}");
        scene.assert_nothing_on_the_host();
        // Removed while it is paused.
        let _ = docker.run(&["pause", "one"]).success();
        scene.end(&["one"]);
        watcher.assert_never_mounted();
        let file = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(file, b"hello\n");
    }

    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn what_docker_runs_on_its_own_has_the_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, node, target, .. } = &scene;
        let volume = scene.volume();
        let run = docker.run_to_its_end(&[&volume], "echo x > /data/file; cat /data/file; echo err >&2; exit 7");
        assert_eq!((run.status.code(), &*run.stdout, &*run.stderr), (Some(7), "x\n", "err\n"), "{run}");
        let run = docker.run_to_its_end(&["--tty", &volume], IS_A_TERMINAL).success();
        assert_eq!(run.stdout.trim(), "x");

        let check = ["--health-cmd=cat /data/file", "--health-interval=100ms", "--health-retries=1"];
        let _ = docker.start_container("checked", &[&check[..], &[&volume]].concat()).success();
        docker.wait_until("checked", "{{.State.Health.Status}}", "healthy");
        let _ = docker.sh("checked", "rm /data/file");
        docker.wait_until("checked", "{{.State.Health.Status}}", "unhealthy");

        let script = "echo line >> /data/lines; test $(grep -c line /data/lines) = 3 || exit 1; exec sleep 1000";
        let policy = ["--detach", "--name=failing", "--restart=on-failure:5", &volume];
        let _ = docker.run_image(&policy, &["/bin/sh", "-ec", script]).success();
        docker.wait_until("failing", "{{.RestartCount}} {{.State.Status}}", "2 running");
        assert_eq!(docker.sh("failing", "cat /data/lines; stat -c %g /data"), "line\nline\nline\n4242");

        // In runcrust's words.
        let file = node.entry(target).join("mountInfo.json");
        let staged = fs::read(&file).unwrap();
        fs::write(&file, "{").unwrap();
        let failed = docker.start_container("refused", &[&volume]).failure();
        for text in ["volume pv-1: ", "isn't JSON", utf8(&node.entry(target))] {
            assert!(failed.stderr.contains(text), "{text}: {failed}");
        }
        fs::write(&file, staged).unwrap();
        scene.assert_nothing_on_the_host();
        scene.end(&["checked", "failing", "refused"]);
    }
}
