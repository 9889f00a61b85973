//! Pods of which a process is killed, and pods that are removed while they run.

use std::fs;

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::cri::runtime_v1::ContainerState;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Containerd, CriPod, Node, POD, on_each_delegate, process, wait_until};

use crate::scene::Scene;
use crate::{OTHER_POD, containerd_with_bare};

/// Kills a pod's shim, and waits until containerd has killed the sandbox and reported the end of the containers.
/// Returns the pids of the containers, which may still run.
#[track_caller]
fn kill_shim(containerd: &Containerd, pod: &CriPod<'_>, apps: &[String; 2]) -> [i32; 2] {
    let cri = pod.cri();
    let left = apps.each_ref().map(|app| cri.pid(app).unwrap());
    let sandbox = pod.pid();
    process::kill_now(containerd.shim(pod.id()));
    for app in apps {
        assert_ne!(cri.wait(app).exit_code, 0);
    }
    wait_until("containerd to kill the sandbox", WAIT_TIMEOUT, || {
        !process::is_alive(sandbox)
    });
    left
}

on_each_delegate! {
    fn a_volume_outlives_a_killed_sandbox_until_its_app_ends(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, device, target, .. } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let _ = cri.sh(&one, "echo live > /data/file");
        process::kill_and_wait(pod.pid());
        assert_eq!(cri.sh(&one, "cat /data/file"), "live");
        let _ = node.stats(target).success();
        let _ = node.unstage(target).failure();
        pod.end();
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[target]);
    }

    fn killing_everything_frees_the_device(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, device, target, containerd } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let pids = [cri.pid(&one).unwrap(), pod.pid()];
        let shims = containerd.shims();
        containerd.kill_daemon();
        for pid in shims.into_iter().chain(pids) {
            process::kill_now(pid);
        }
        device.wait_until_free(WAIT_TIMEOUT);
        wait_until("the pod's processes to end", WAIT_TIMEOUT, || !pids.into_iter().any(process::is_alive));
        let _ = node.unstage(target).success();
        assert!(!node.entry(target).exists());
        containerd.restart();
    }

    /// kubelet recreates the pod. Of the processes that the shim leaves, exactly those survive that also survive with
    /// the delegate alone: containerd 1.6 and 1.7 kill all of them; 2.1 kills the sandbox and leaves the containers.
    fn a_pod_can_be_recreated_after_its_shim_was_killed(delegate: Delegate) {
        let node = Node::new(delegate);
        let scene = Scene::in_containerd(containerd_with_bare(&node), node, Node::ext4, &[]);
        let Scene { device, target, containerd, .. } = &scene;
        let bare = CriPod::with_handler(containerd, containerd.pod(OTHER_POD), "bare");
        let ordinary = scene.node.dir().subdir("ordinary");
        let left = kill_shim(containerd, &bare, &["one", "two"].map(|name| bare.app(name, &ordinary)));
        bare.end();
        let outlives = left.map(process::is_alive);
        left.into_iter().for_each(process::kill_and_wait);

        let (cri, pod) = (scene.cri(), scene.pod());
        let apps = ["one", "two"].map(|name| pod.app(name, target));
        let _ = cri.sh(&apps[0], "echo hello > /data/file; sync");
        let left = kill_shim(containerd, &pod, &apps);
        for (pid, outlives) in left.into_iter().zip(outlives) {
            wait_until("containerd to kill a container", WAIT_TIMEOUT, || outlives || !process::is_alive(pid));
        }
        if outlives == [false; 2] {
            device.wait_until_free(WAIT_TIMEOUT);
        }
        let second = CriPod::with_config(containerd, containerd.pod(POD).attempt(1));
        let one = second.start(&second.with("one", target).attempt(1));
        assert_eq!(cri.sh(&one, "cat /data/file"), "hello");
        left.into_iter().for_each(process::kill_and_wait);
        pod.end();
        assert_eq!(cri.sh(&one, "cat /data/file"), "hello", "the end of the first pod affected the second");
        scene.end(&second);
    }

    fn a_running_pod_can_be_removed(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, device, target, .. } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let (one, two) = (pod.app("one", target), pod.app("two", target));
        // First a running container.
        cri.remove(&one).unwrap();
        assert_eq!(cri.sh(&two, "echo on > /data/file; cat /data/file"), "on");
        cri.remove_pod(pod.id()).unwrap();
        assert!(cri.pods().unwrap().is_empty() && cri.containers("").unwrap().is_empty());
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[target]);
    }

    /// The hook waits for a lock when containerd is killed. A long fsGroup walk would have the same effect.
    fn a_pod_starts_after_containerd_was_killed_during_a_hook(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "2000"]);
        let Scene { node, device, target, containerd } = &scene;
        let cri = scene.cri();
        let held = fs::File::options().write(true).open(node.lock_file(target)).unwrap();
        let held = Flock::lock(held, FlockArg::LockExclusive).unwrap();
        let hooks = || {
            process::with_command_line(|line| {
                line.contains("crust-mount-hook\0sandbox\0") && line.contains(utf8(target))
            })
        };
        std::thread::scope(|scope| {
            let hook_waits = scope.spawn(|| {
                wait_until("the hook to run", WAIT_TIMEOUT, || !hooks().is_empty());
                containerd.kill_daemon();
            });
            let _ = runcrust_tests::Cri::new(&containerd.socket())
                .run_pod(&containerd.pod(POD), "crust")
                .expect_err("containerd is gone");
            hook_waits.join().unwrap();
        });
        containerd.restart();
        drop(held);
        wait_until("the hook to end", WAIT_TIMEOUT, || hooks().is_empty());
        for left in cri.pods().unwrap() {
            cri.stop_pod(&left.id).unwrap();
            cri.remove_pod(&left.id).unwrap();
        }
        let pod = CriPod::with_config(containerd, containerd.pod(POD).attempt(1));
        let one = pod.app("one", target);
        assert_eq!(cri.status(&one).unwrap().state(), ContainerState::ContainerRunning);
        assert_eq!(cri.sh(&one, "stat -c %g /data; echo hello > /data/file"), "2000");
        pod.end();
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(target).success();
        // containerd 1.6 forgets the bundle of a create whose end it did not see. The bundle's record stays as long as
        // the bundle.
        let left = node.records();
        assert!(left.iter().all(|record| record.starts_with("run/bundles")), "{left:?}");
        for bundle in fs::read_dir(containerd.bundle("")).unwrap() {
            let _ = fs::remove_file(bundle.unwrap().path().join("config.json"));
        }
        let _ = node.unstage(target).success();
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
    }
}
