//! podman with runcrust as its runtime: containers without a sandbox, and another caller than containerd.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{
    Delegate, Engine as _, LoopDevice, MountWatcher, Node, POD, PODMAN_IMAGE, Podman, Run,
    StagedPair, StagedVolume, TestDir, cgroup, on_each_delegate, on_each_file_system, process,
};
use serde_json::{Value, json};

fn podman(node: &Node) -> Podman {
    Podman::new(node.dir(), &node.handler().runtime())
}

fn volume(source: &Path, options: &str) -> String {
    format!("--volume={}:/data{options}", source.display())
}

/// Asserts that the container was not started and that podman shows runcrust's message with `word`.
#[track_caller]
fn assert_refused(run: &Run, word: &str) {
    assert!(
        !run.status.success() && !run.stdout.contains("written"),
        "{run}"
    );
    run.assert_contains(&["volume ", word, "hint: "]);
}

/// Plays a pod with one container, `app`, that mounts the volume's directory `sub` at `/data`.
fn play(podman: &Podman, dir: &TestDir, name: &str, mut volume: Value) -> Run {
    volume["name"] = "data".into();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "containers": [{
                "name": "app", "image": PODMAN_IMAGE, "imagePullPolicy": "Never",
                "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "sub"}]
            }],
            "volumes": [volume]
        }
    });
    let file = dir.join(format!("{name}.yaml"));
    fs::write(&file, pod.to_string()).unwrap();
    podman.run(&["play", "kube", "--network", "none", utf8(&file)])
}

/// A node with a volume, and podman, in the order in which they are dropped.
struct Scene {
    podman: Podman,
    target: PathBuf,
    device: LoopDevice,
    node: Node,
}

impl Scene {
    /// Creates a scene with an ext4 volume that is staged with these options.
    fn new(delegate: Delegate, options: &[&str]) -> Self {
        Self::with_device(delegate, Node::ext4, options)
    }

    fn with_device(
        delegate: Delegate,
        device: impl FnOnce(&Node) -> LoopDevice,
        options: &[&str],
    ) -> Self {
        let node = Node::new(delegate);
        let device = device(&node);
        Self {
            target: node.stage(POD, "pv-1", &device, options),
            podman: podman(&node),
            device,
            node,
        }
    }

    /// Removes podman's containers, and asserts that nothing else is left.
    #[track_caller]
    fn end(&self) {
        for command in [&["pod", "rm"][..], &["rm"]] {
            let all = ["--all", "--force", "--time", "0"];
            let _ = self.podman.run(&[command, &all].concat()).success();
        }
        self.device.wait_until_free(WAIT_TIMEOUT);
        self.node.unstage_all(&[&self.target]);
    }
}

on_each_delegate! {
    fn a_container_with_a_volume_runs_pauses_and_restarts(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "4242"]);
        let Scene { node, device, target, podman } = &scene;
        let watcher = MountWatcher::start(device.path());
        let _ = podman.start("one", &[&volume(target, "")], 0).success();
        assert_eq!(podman.sh("one", "echo hello > /data/file; stat -c %g /data"), "4242");
        let group = podman.inspect("one", "{{.State.CgroupPath}}");
        let _ = podman.run(&["pause", "one"]).success();
        assert!(cgroup::is_frozen(&group), "{group}");
        let _ = node.stats(target).success();
        let _ = podman.run(&["unpause", "one"]).success();
        assert!(!cgroup::is_frozen(&group), "{group}");
        let _ = podman.run(&["restart", "--time", "0", "one"]).success();
        assert_eq!(podman.sh("one", "cat /data/file"), "hello");
        let _ = podman.run(&["stop", "--time", "0", "one"]).success();
        let _ = podman.run(&["start", "one"]).success();
        assert_eq!(podman.sh("one", "cat /data/file"), "hello");
        watcher.assert_never_mounted();
        let _ = podman.run(&["rm", "--force", "--time", "0", "one"]).success();
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[target]);
        let file = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(file, b"hello\n");
        assert_eq!(fs::read_dir(target).unwrap().count(), 0, "files are left on the host");
    }

    fn subpaths_and_read_only_volumes_can_be_mounted(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir(root.join("sub")).unwrap();
            fs::write(root.join("sub/mark"), "sub").unwrap();
        });
        let staged = StagedVolume::on_device(node, device, &[]);
        // podman requires that a source exists; kubelet creates it the same way.
        fs::create_dir(staged.target.join("sub")).unwrap();
        let podman = podman(&staged);
        let _ = podman.start("one", &[&volume(&staged.target.join("sub"), ":ro")], 0).success();
        assert_eq!(podman.sh("one", "cat /data/mark"), "sub");
        let _ = podman.run(&["exec", "one", "touch", "/data/x"]).failure();
        let _ = podman.start("two", &[&volume(&staged.target, "")], 0).success();
        assert_eq!(podman.sh("two", "cat /data/sub/mark"), "sub");
        assert_eq!(fs::read_dir(staged.target.join("sub")).unwrap().count(), 0);
    }

    fn a_named_volume_can_be_staged(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let podman = podman(&node);
        let _ = podman.run(&["volume", "create", "named"]).success();
        let format = "{{.Mountpoint}}";
        let target = podman.run(&["volume", "inspect", "--format", format, "named"]).success().stdout;
        let target = Path::new(target.trim());
        let _ = node.try_stage(target, device.path(), &[]).success();
        let _ = podman.start("one", &["--volume=named:/data"], 0).success();
        let _ = podman.sh("one", "echo x > /data/file");
        assert_eq!(fs::read_dir(target).unwrap().count(), 0, "files are left on the host");
        let _ = podman.run(&["rm", "--force", "--time", "0", "one"]).success();
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[target]);
    }

    fn a_container_in_a_user_namespace_sees_its_own_ids(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { target, podman, .. } = &scene;
        let first = 600_000;
        let map = format!("0:{first}:65536");
        let flags = ["--uidmap", &map, "--gidmap", &map, &volume(target, "")];
        let _ = podman.start("one", &flags, first).success();
        let owners = podman.sh("one", "echo x > /data/file; chown 5:6 /data/file; stat -c %u:%g /data /data/file");
        assert_eq!(owners, "0:0\n5:6");
        // A container that joins an existing user namespace.
        let _ = podman.start("two", &["--userns=container:one", &volume(target, "")], first).success();
        assert_eq!(podman.sh("two", "stat -c %u:%g /data /data/file"), owners);
        assert_eq!(podman.sh("two", "readlink /proc/self/ns/user"), podman.sh("one", "readlink /proc/self/ns/user"));
        // "two" must be removed before the container that owns the namespace.
        let _ = podman.run(&["rm", "--force", "--time", "0", "two"]).success();
        scene.end();
    }

    fn a_failed_start_shows_runcrusts_message(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, target, podman, .. } = &scene;
        fs::write(node.entry(target).join("mountInfo.json"), "{").unwrap();
        let failed = podman.start("one", &[&volume(target, "")], 0).failure();
        assert!(failed.stderr.contains("volume pv-1: ") && failed.stderr.contains("isn't JSON"), "{failed}");
        assert!(failed.stderr.contains(utf8(&node.entry(target))), "{failed}");
    }

    fn a_container_without_staged_volumes_runs_as_usual(delegate: Delegate) {
        let node = Node::new(delegate);
        let podman = podman(&node);
        let ordinary = node.dir().subdir("ordinary");
        let _ = podman.start("one", &[&volume(&ordinary, "")], 0).success();
        let _ = podman.sh("one", "echo x > /data/file");
        assert_eq!(fs::read(ordinary.join("file")).unwrap(), b"x\n");
        let runtime = podman.inspect("one", "{{.OCIRuntime}}");
        assert_eq!(Path::new(&runtime), node.handler().path());
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
    }

    /// podman does not pass the pod of a container, so the pod is taken from the target path.
    fn a_pods_containers_share_a_volume(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--access-mode", "SINGLE_NODE_SINGLE_WRITER"]);
        let Scene { node, device, target, podman } = &scene;
        podman.import_image();
        let _ = podman.run(&["pod", "create", "--name", "pod", "--network", "none"]).success();
        for name in ["one", "two"] {
            let _ = podman.start(name, &["--pod", "pod", &volume(target, "")], 0).success();
        }
        let _ = podman.sh("one", "echo hello > /data/file");
        assert_eq!(podman.sh("two", "cat /data/file"), "hello");
        for namespace in ["ipc", "uts"] {
            let link = format!("readlink /proc/self/ns/{namespace}");
            assert_eq!(podman.sh("one", &link), podman.sh("two", &link));
        }
        assert_eq!(podman.sh("one", "stat -c %d /data"), podman.sh("two", "stat -c %d /data"));
        let _ = podman.run(&["pod", "stop", "--time", "0", "pod"]).success();
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = podman.run(&["pod", "start", "pod"]).success();
        assert_eq!(podman.sh("two", "cat /data/file"), "hello");
        let refused = node.unstage(target).failure();
        assert!(refused.stderr.contains("it is in use by container "), "{refused}");
        scene.end();
    }

    fn a_foreground_container_returns_its_exit_code(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { target, podman, .. } = &scene;
        let run = podman.run_foreground(&[&volume(target, "")], "echo x > /data/file; cat /data/file; echo err >&2; exit 7");
        // podman warns there, for example that the machine has no CNI plugins.
        let errors: Vec<&str> = run.stderr.lines().filter(|line| !line.contains(" level=warning ")).collect();
        assert_eq!((run.status.code(), run.stdout.as_str(), &errors[..]), (Some(7), "x\n", &["err"][..]), "{run}");
        let run = podman.run_foreground(&[&volume(target, "")], "cat /data/file; kill -KILL $$");
        assert_eq!(run.stdout, "x\n", "{run}");
        scene.end();
    }

    fn exec_stats_and_kill_work_as_usual(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { device, target, podman, .. } = &scene;
        let _ = podman.start("one", &[&volume(target, "")], 0).success();
        let exec = podman.run(&["exec", "one", "/bin/sh", "-c", "echo out; echo err >&2; exit 5"]);
        assert_eq!((exec.status.code(), exec.stdout.as_str()), (Some(5), "out\n"), "{exec}");
        let stats = podman.run(&["stats", "--no-stream", "--format", "{{.Name}} {{.PIDs}}", "one"]).success();
        assert_eq!(stats.stdout.trim(), "one 1");
        let _ = podman.run(&["kill", "--signal", "KILL", "one"]).success();
        podman.wait_until("one", "{{.State.Status}} {{.State.ExitCode}}", "exited 137");
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = podman.run(&["start", "one"]).success();
        let _ = podman.sh("one", "echo x > /data/file");
        scene.end();
    }

    fn a_container_that_fails_is_restarted_with_its_volume(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "4242"]);
        let Scene { target, podman, .. } = &scene;
        podman.import_image();
        let script = "echo line >> /data/file; test $(grep -c line /data/file) = 3 || exit 1; exec sleep 1000";
        let flags = ["run", "--detach", "--name", "one", "--restart", "on-failure:5", &volume(target, "")];
        let _ = podman.run(&[&flags[..], &[PODMAN_IMAGE, "/bin/sh", "-ec", script]].concat()).success();
        podman.wait_for_content("one", "/data/file", "line\nline\nline\n");
        assert_eq!(podman.sh("one", "stat -c %g /data"), "4242");
        scene.end();
    }

    fn a_container_outlives_its_conmon(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, device, target, podman } = &scene;
        let _ = podman.start("one", &[&volume(target, "")], 0).success();
        let _ = podman.sh("one", "echo x > /data/file");
        let pid = |field| podman.inspect("one", &format!("{{{{.State.{field}}}}}")).parse().unwrap();
        let (conmon, init): (i32, i32) = (pid("ConmonPid"), pid("Pid"));
        process::kill_and_wait(conmon);
        assert!(process::is_alive(init));
        let _ = node.stats(target).success();
        let _ = node.unstage(target).failure();
        process::kill_and_wait(init);
        device.wait_until_free(WAIT_TIMEOUT);
        // podman does not learn how the container ended, so this may fail.
        let _ = podman.run(&["rm", "--force", "--time", "0", "one"]);
        let _ = podman.start("two", &[&volume(target, "")], 0).success();
        assert_eq!(podman.sh("two", "cat /data/file"), "x");
        scene.end();
    }

    fn a_killed_container_can_be_restarted(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { device, target, podman, .. } = &scene;
        let _ = podman.start("one", &[&volume(target, "")], 0).success();
        let _ = podman.sh("one", "echo x > /data/file");
        process::kill_now(podman.inspect("one", "{{.State.Pid}}").parse().unwrap());
        podman.wait_until("one", "{{.State.Status}}", "exited");
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = podman.run(&["start", "one"]).success();
        assert_eq!(podman.sh("one", "cat /data/file"), "x");
        scene.end();
    }

    /// The hostPath in the manifest is the target path of a CSI volume.
    fn play_kube_mounts_a_staged_host_path(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "4242"]);
        let Scene { node, target, podman, .. } = &scene;
        podman.import_image();
        let container = |name: &str| json!({
            "name": name, "image": PODMAN_IMAGE, "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "played"},
            "spec": {
                "containers": [container("one"), container("two")],
                "volumes": [{"name": "data", "hostPath": {"path": target, "type": "Directory"}}]
            }
        });
        let file = node.dir().join("pod.yaml");
        fs::write(&file, pod.to_string()).unwrap();
        let _ = podman.run(&["play", "kube", "--network", "none", utf8(&file)]).success();
        let _ = podman.sh("played-one", "echo hello > /data/file");
        assert_eq!(podman.sh("played-two", "cat /data/file; stat -c %g /data"), "hello\n4242");
        let _ = podman.run(&["play", "kube", "--down", utf8(&file)]).success();
        assert_eq!(fs::read_dir(target).unwrap().count(), 0, "files are left on the host");
        scene.end();
    }

    /// podman mounts the staged directory on the named volume's own directory, and passes on the path of the latter.
    /// With `:O` it mounts an overlay.
    fn a_named_volume_over_a_staged_directory_works_or_is_refused(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let podman = podman(&scene.node);
        let subs = [&scene.csi, &scene.plain].map(|target| target.join("sub"));
        for (name, source) in [("csi", &scene.csi), ("csi-sub", &subs[0]), ("plain", &scene.plain), ("plain-sub", &subs[1])] {
            podman.create_bind_volume(name, source);
        }
        for (volume, expected) in [
            ("csi:/data", Ok("volume\nwritten\n")),
            ("csi:/data:ro", Ok("volume\nrefused\n")),
            ("csi:/data:O", Err("overlay")),
            ("csi-sub:/data", Ok("sub\nwritten\n")),
            ("plain:/data", Ok("volume\nwritten\n")),
            ("plain-sub:/data", Err("match_roots")),
        ] {
            let run = podman.run_foreground(&[&format!("--volume={volume}")], StagedPair::PROBE_SCRIPT);
            match expected {
                Ok(output) => assert_eq!(run.success().stdout, output, "{volume}"),
                Err(word) => assert_refused(&run, word),
            }
            scene.assert_nothing_on_the_host();
        }
        scene.end();
    }

    /// podman binds the subpath to a path in its own directory. It names the subpath by a file descriptor.
    #[ignore = "needs podman 5; runs in another Debian: make engines"]
    fn a_subpath_of_a_named_volume_works_or_is_refused(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let podman = podman(&scene.node);
        let run = |name: &str, source| {
            podman.create_bind_volume(name, source);
            let mount = format!("--mount=type=volume,source={name},destination=/data,subpath=sub");
            podman.run_foreground(&[&mount], StagedPair::PROBE_SCRIPT)
        };
        let mounted = run("csi", &scene.csi).success();
        assert_eq!(mounted.stdout, "sub\nwritten\n", "{mounted}");
        assert_refused(&run("plain", &scene.plain), "match_roots");
        scene.end();
    }

    /// podman binds a manifest's subpath, too, to a path in its own directory. It names the subpath by a file
    /// descriptor.
    #[ignore = "needs podman 5; runs in another Debian: make engines"]
    fn play_kube_mounts_a_subpath_of_a_staged_volume_or_fails(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let podman = podman(&scene.node);
        podman.import_image();
        for (name, source, is_mounted) in [("csi", &scene.csi, true), ("plain", &scene.plain, false)] {
            podman.create_bind_volume(name, source);
            for (kind, volume) in [
                ("path", json!({"hostPath": {"path": source, "type": "Directory"}})),
                ("claim", json!({"persistentVolumeClaim": {"claimName": name}})),
            ] {
                let pod = format!("{name}-{kind}");
                let played = play(&podman, scene.node.dir(), &pod, volume);
                if is_mounted {
                    let _ = played.success();
                    assert_eq!(podman.sh(&format!("{pod}-app"), StagedPair::PROBE_SCRIPT), "sub\nwritten");
                } else {
                    assert_refused(&played, "match_roots");
                }
                scene.assert_nothing_on_the_host();
                let _ = podman.run(&["pod", "rm", "--force", "--time", "0", &pod]).success();
            }
        }
        scene.end();
    }

    /// The workload would write to the node's disk or to a layer of the engine.
    fn an_overlay_of_a_volume_is_refused(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { target, podman, .. } = &scene;
        let failed = podman.start("one", &[&volume(target, ":O")], 0).failure();
        failed.assert_contains(&["volume pv-1: ", "overlay", "hint: "]);
        scene.end();
    }

    /// podman enters a running container; for a stopped one it uses the sources of the binds on the host.
    fn podman_cp_reaches_the_volume_of_a_running_container(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, target, podman, .. } = &scene;
        let _ = podman.start("one", &[&volume(target, "")], 0).success();
        let file = node.dir().join("file");
        fs::write(&file, "copied\n").unwrap();
        let _ = podman.run(&["cp", utf8(&file), "one:/data/in"]).success();
        assert_eq!(podman.sh("one", "cat /data/in; mv /data/in /data/out"), "copied");
        let back = node.dir().join("back");
        let _ = podman.run(&["cp", "one:/data/out", utf8(&back)]).success();
        assert_eq!(fs::read_to_string(&back).unwrap(), "copied\n");
        assert_eq!(fs::read_dir(target).unwrap().count(), 0, "files are left on the host");
        let _ = podman.run(&["stop", "--time", "0", "one"]).success();
        let _ = podman.run(&["cp", "one:/data/out", utf8(&back)]).failure();
        let _ = podman.run(&["cp", utf8(&file), "one:/data/in"]).success();
        assert!(target.join("in").exists(), "podman writes to the host's directory");
        let _ = podman.run(&["start", "one"]).success();
        assert_eq!(podman.sh("one", "ls /data"), "lost+found\nout");
        let stats = node.stats(target).success();
        assert!(stats.stdout.contains("\"abnormal\":true"), "{stats}");
        scene.end();
    }
}

on_each_file_system! {
    fn a_container_has_its_volume_on(delegate: Delegate, fstype: &'static str) {
        let scene = Scene::with_device(delegate, |node| node.formatted(fstype), &["--fs-group", "4242"]);
        let Scene { device, target, podman, .. } = &scene;
        for name in ["one", "two"] {
            let _ = podman.start(name, &[&volume(target, "")], 0).success();
        }
        let _ = podman.sh("one", "echo hello > /data/file");
        assert_eq!(podman.sh("two", "cat /data/file; stat -c %g /data"), "hello\n4242");
        scene.end();
        fsck(fstype, device.path());
    }
}
