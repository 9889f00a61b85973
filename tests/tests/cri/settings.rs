//! Effects of runcrust's configuration on pods.

use std::fs;

use runcrust_tests::{CriPod, Delegate, Node, POD, on_each_delegate};

use crate::scene::Scene;
use crate::{OTHER_POD, containerd};

/// Stages an ext4 on a node with one more line in runcrust's configuration.
fn scene_with(delegate: Delegate, setting: &str, options: &[&str]) -> Scene {
    Scene::on_node(Node::with(delegate, setting), Node::ext4, options)
}

on_each_delegate! {
    /// The hook mounts on a directory of the image, because the delegate only creates the mountpoints of its own
    /// mounts.
    fn a_hook_in_the_container_mounts_and_its_message_is_logged(delegate: Delegate) {
        let node = Node::logging(delegate);
        let lines = format!("mount_mode = \"hook\"\nlog = {:?}", node.log_path());
        node.handler().reconfigure(&lines);
        let scene = Scene::on_node(node, Node::ext4, &["--fs-group", "2000"]);
        let (cri, pod) = (scene.cri(), scene.pod());
        let config = scene.containerd.app("one").mount(&scene.target, "/var");
        let one = pod.start(&config);
        assert_eq!(cri.sh(&one, "echo hello > /var/file; stat -c '%g %a' /var"), "2000 2775");
        let mounted = cri.sh(&one, "grep ' /var ' /proc/self/mountinfo");
        assert!(mounted.contains(&format!(" {} / /var ", scene.device.number())), "{mounted}");
        let _ = scene.node.stats(&scene.target).success();
        cri.stop(&one).unwrap();
        let restarted = pod.start(&config.attempt(1));
        assert_eq!(cri.sh(&restarted, "cat /var/file"), "hello");

        let sentence = "volume pv-1: ";
        let error = pod.expect_refusal(&pod.with("two", &scene.target));
        assert_eq!(error.message.contains(sentence), delegate == Delegate::Runc, "{error}");
        let log = scene.node.log();
        let is_logged = |line: &str| line.contains(sentence) && line.contains("/data");
        assert!(log.lines().any(is_logged), "{log}");
        scene.end(&pod);
    }

    fn device_node_always_gives_every_workload_its_device(delegate: Delegate) {
        let scene = scene_with(delegate, "device_node = \"always\"", &[]);
        let pod = scene.pod();
        let one = pod.app("one", &scene.target);
        let read = "dd if=$(ls /dev/crust/*) of=/dev/null count=1 2>/dev/null && echo read";
        assert_eq!(scene.cri().sh(&one, read), "read");
        scene.end(&pod);
    }

    fn shared_deny_gives_a_device_to_one_pod(delegate: Delegate) {
        let scene = scene_with(delegate, "shared = \"deny\"", &[]);
        let theirs = scene.node.stage(OTHER_POD, "pv-1", &scene.device, &[]);
        let pod = scene.pod();
        let holder = pod.app("holder", &scene.target);
        let other = CriPod::run(&scene.containerd, OTHER_POD);
        let app = other.with("one", &theirs);
        let error = other.expect_refusal(&app);
        for name in ["shared = \"deny\"", POD, pod.id()] {
            assert!(error.message.contains(name), "{name:?} is missing in: {error}");
        }
        let _ = scene.cri().sh(&holder, "echo on > /data/file");
        pod.end();
        let one = other.start(&app.attempt(1));
        assert_eq!(scene.cri().sh(&one, "cat /data/file"), "on");
        other.end_and_unstage(&scene.node, &[&scene.target, &theirs]);
    }

    fn unstaged_pass_shows_the_hosts_directory(delegate: Delegate) {
        let node = Node::with(delegate, "unstaged = \"pass\"");
        let target = node.target(POD, "pv-1");
        let containerd = containerd(&node);
        let pod = CriPod::run(&containerd, POD);
        let one = pod.app("one", &target);
        let _ = containerd.cri().sh(&one, "echo x > /data/file");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "x\n");
        pod.end_and_unstage(&node, &[]);
    }

    fn a_volumes_options_override_default_options(delegate: Delegate) {
        for (own, expected) in [(&[][..], "commit=7"), (&["--option", "commit=9"], "commit=9")] {
            let scene = scene_with(delegate, "default_options = [\"commit=7\"]", own);
            let pod = scene.pod();
            let one = pod.app("one", &scene.target);
            let mounted = scene.cri().sh(&one, "grep ' /data ' /proc/self/mountinfo");
            let options = mounted.rsplit(' ').next().unwrap().split(',');
            assert!(options.into_iter().any(|option| option == expected), "{mounted}");
            scene.end(&pod);
        }
    }
}
