//! Kinds of containers, and what kubelet uses besides starting and stopping them.

use std::fs;

use runcrust_tests::cri::runtime_v1::{SecurityProfile, security_profile::ProfileType};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{CriPod, POD, on_each_delegate, wait_until};

use crate::scene::Scene;

on_each_delegate! {
    fn init_containers_run_one_after_another(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "2000"]);
        let target = &scene.target;
        let (cri, pod) = (scene.cri(), scene.pod());
        let init = |name: &str, script: &str| pod.with(name, target).script(script);
        let first = pod.start(&init("first", "echo first > /data/list"));
        let status = cri.wait(&first);
        assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"), "{status:?}");
        // The second init container fails first, and succeeds on the retry.
        let second = init("second", "echo second >> /data/list; test -e /data/ready || { touch /data/ready; exit 7; }");
        let status = cri.wait(&pod.start(&second));
        assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"), "{status:?}");
        assert_eq!(cri.wait(&pod.start(&second.attempt(1))).exit_code, 0);
        let app = pod.app("app", target);
        assert_eq!(cri.sh(&app, "cat /data/list; stat -c %g /data/list"), "first\nsecond\nsecond\n2000");
        scene.end(&pod);
    }

    /// Output goes only to the log of its container, and exit codes are unchanged.
    fn logs_and_exit_codes_are_the_containers(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let target = &scene.target;
        let (cri, pod) = (scene.cri(), scene.pod());
        let script = "echo out > /data/file; cat /data/file; echo err >&2; exit 42";
        let config = pod.with("printing", target).script(script);
        let id = pod.start(&config);
        assert_eq!(cri.wait(&id).exit_code, 42);
        let log = fs::read_to_string(pod.log_of(&config)).unwrap();
        let lines = log.lines().map(|line| line.split_once(' ').unwrap().1);
        let mut lines: Vec<&str> = lines.collect();
        lines.sort_unstable();
        assert_eq!(lines, ["stderr F err", "stdout F out"]);

        let one = pod.app("one", target);
        let done = cri.exec(&one, &["/bin/sh", "-c", "cat /data/file; echo no >&2; exit 9"]).unwrap();
        assert_eq!((done.exit_code, done.stdout.as_str(), done.stderr.as_str()), (9, "out\n", "no\n"));
        scene.end(&pod);
    }

    fn a_terminal_reaches_the_container(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let target = &scene.target;
        let (cri, pod) = (scene.cri(), scene.pod());
        let mut config = pod.with("one", target);
        (config.tty, config.stdin) = (true, true);
        let config = config.script("for stream in 0 1 2; do test -t $stream && is=\"$is$stream\"; done; echo $is. > /data/terminal; exec sleep 1000");
        let one = pod.start(&config);
        let wait = "until test -s /data/terminal; do :; done; cat /data/terminal";
        assert_eq!(cri.sh(&one, wait), "012.");
        scene.end(&pod);
    }

    fn containerd_reports_a_containers_usage(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let target = &scene.target;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let _ = cri.sh(&one, "dd if=/dev/zero of=/data/zeros bs=1M count=8 2>/dev/null");
        wait_until("stats of the container", WAIT_TIMEOUT, || {
            let stats = cri.stats(&one).expect("ContainerStats");
            let attributes = stats.attributes.unwrap_or_default();
            assert_eq!(attributes.id, one);
            let cpu = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds);
            let memory = stats.memory.and_then(|memory| memory.working_set_bytes);
            cpu.is_some_and(|it| it.value > 0) && memory.is_some_and(|it| it.value > 0)
        });
        scene.end(&pod);
    }

    /// A confined and a privileged container both have the volume.
    fn seccomp_and_privileges_are_as_requested(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { device, target, containerd, .. } = &scene;
        let cri = scene.cri();
        let mut config = containerd.pod(POD);
        // The pod of a privileged container has to be privileged, too.
        config.security().privileged = true;
        let pod = CriPod::with_config(containerd, config);
        let mut confined = pod.with("confined", target);
        confined.security().seccomp = Some(SecurityProfile {
            profile_type: ProfileType::RuntimeDefault.into(),
            ..SecurityProfile::default()
        });
        confined.security().no_new_privs = true;
        let confined = pod.start(&confined);
        let status = cri.sh(&confined, "echo x > /data/file; grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status");
        assert_eq!(status, "NoNewPrivs:\t1\nSeccomp:\t2");
        let mut privileged = pod.with("privileged", target);
        privileged.security().privileged = true;
        let privileged = pod.start(&privileged);
        assert_eq!(cri.sh(&privileged, "cat /data/file; grep ^Seccomp: /proc/self/status"), "x\nSeccomp:\t0");
        let raw = format!("dd if={} of=/dev/null count=1 2>/dev/null && echo read", device.path().display());
        assert_eq!(cri.sh(&privileged, &raw), "read", "a privileged container can read all devices");
        assert_eq!(cri.sh(&privileged, "ls -d /.crust 2>/dev/null | wc -l"), "0");
        assert_eq!(device.host_mounts(), <[String; 0]>::default());
        scene.end(&pod);
    }
}
