//! Restarts of containers and of containerd.

use std::fs;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{CriPod, Node, POD, on_each_delegate};
use serde_json::Value;

use crate::containerd;
use crate::scene::Scene;

/// Returns the ids of the users in a volume's record.
fn users(node: &Node, target: &std::path::Path) -> Vec<String> {
    let record = fs::read(node.entry(target).join("runcrust.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let users = record["users"].as_array().unwrap().iter();
    users
        .map(|user| user["id"].as_str().unwrap().to_owned())
        .collect()
}

on_each_delegate! {
    /// kubelet first creates the next container, and removes the old one some time later.
    fn an_ended_container_can_be_recreated(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, target, .. } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let config = pod.with("one", target);
        let ends = config.clone().script("echo $((1 + $(cat /data/count 2>/dev/null || echo 0))) > /data/count; exit 3");
        let mut last = None;
        for attempt in 0..3 {
            let id = pod.start(&ends.clone().attempt(attempt));
            assert_eq!(cri.wait(&id).exit_code, 3);
            if let Some(last) = last.replace(id) {
                cri.remove(&last).unwrap();
            }
        }
        // A container that kubelet stops.
        let stopped = pod.start(&config.clone().attempt(3));
        cri.remove(&last.unwrap()).unwrap();
        let before = cri.sh(&stopped, "stat -c %d:%i /data/count");
        cri.stop(&stopped).unwrap();
        let now = pod.start(&config.attempt(4));
        cri.remove(&stopped).unwrap();
        assert_eq!(cri.sh(&now, "cat /data/count; stat -c %d:%i /data/count"), format!("3\n{before}"));
        assert_eq!(users(node, target), [pod.id(), &now], "earlier containers are still recorded");
        scene.end(&pod);
    }

    fn fsgroup_is_applied_once_for_each_pod(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let fill = |root: &std::path::Path| fs::write(root.join("file"), "").unwrap();
        with_mounted(device.path(), fill);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let stat = "stat -c %g:%a /data/file";
        // For each policy: what the first pod's first container sees, and what the second pod's first container sees.
        let cases = [("Always", "2000:664", "2000:660"), ("OnRootMismatch", "7:600", "7:600")];
        for (attempt, (policy, first, second)) in (0..).zip(cases) {
            let options = ["--fs-group", "2000", "--fs-group-change-policy", policy];
            let target = node.stage(POD, "pv-1", &device, &options);
            let pod = CriPod::with_config(&containerd, containerd.pod(POD).attempt(2 * attempt));
            let one = pod.app("one", &target);
            assert_eq!(cri.sh(&one, stat), first, "{policy}");
            let _ = cri.sh(&one, "chgrp 7 /data/file; chmod 600 /data/file");
            cri.stop(&one).unwrap();
            let restarted = pod.start(&pod.with("one", &target).attempt(1));
            assert_eq!(cri.sh(&restarted, stat), "7:600", "{policy}: fsGroup was applied again");
            pod.end();
            let next = CriPod::with_config(&containerd, containerd.pod(POD).attempt(2 * attempt + 1));
            let one = next.app("one", &target);
            assert_eq!(cri.sh(&one, stat), second, "{policy}: in the next pod");
            let _ = cri.sh(&one, "chgrp 7 /data/file; chmod 600 /data/file");
            next.end_and_unstage(&node, &[&target]);
        }
        // Now the root of the volume has another group than requested.
        let options = ["--fs-group", "3000", "--fs-group-change-policy", "OnRootMismatch"];
        let target = node.stage(POD, "pv-1", &device, &options);
        let pod = CriPod::with_config(&containerd, containerd.pod(POD).attempt(9));
        let one = pod.app("one", &target);
        assert_eq!(cri.sh(&one, stat), "3000:660");
        pod.end_and_unstage(&node, &[&target]);
    }

    fn a_restarted_containerd_finds_the_pod_unchanged(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, target, containerd, .. } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let stopped = pod.app("stopped", target);
        // After the restart, containerd knows only from its disk about the containers `stopped` and `waiting`.
        let waiting = pod.create(&pod.with("waiting", target));
        let _ = cri.sh(&one, "echo hello > /data/file");
        cri.stop(&stopped).unwrap();
        containerd.restart();
        assert_eq!(cri.sh(&one, "cat /data/file"), "hello");
        cri.start(&waiting).unwrap();
        assert_eq!(cri.sh(&waiting, "cat /data/file"), "hello");
        assert_eq!(cri.wait(&stopped).exit_code, 137);
        let restarted = pod.start(&pod.with("stopped", target).attempt(1));
        cri.remove(&stopped).unwrap();
        assert_eq!(cri.sh(&restarted, "cat /data/file"), "hello");
        assert_eq!(users(node, target), [pod.id(), &one, &waiting, &restarted]);
        scene.end(&pod);
    }

    /// The shim reports the container's end once containerd runs again.
    fn a_container_that_ends_without_containerd_is_restarted(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, device, target, containerd } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let pid = cri.pid(&one).unwrap();
        let _ = cri.sh(&one, "echo hello > /data/file");
        containerd.kill_daemon();
        runcrust_tests::process::kill_and_wait(pid);
        containerd.restart();
        let _ = cri.wait(&one);
        let restarted = pod.start(&pod.with("one", target).attempt(1));
        assert_eq!(cri.sh(&restarted, "cat /data/file"), "hello");
        pod.end();
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[target]);
    }
}
