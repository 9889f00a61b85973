//! Pods, containerd and its shims killed with SIGKILL. The suite `interrupted` kills runcrust after each of its steps,
//! and the suite `ops` kills `crust_ops`.

use runcrust_tests::container::kill_and_remove_bundles;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Containerd, CriPod, Node, POD, StagedVolume, on_each_delegate, process, wait_until,
};

use crate::{assert_collected, assert_next_pod_works};

on_each_delegate! {
    fn records_of_a_killed_pod_are_removed(delegate: Delegate) {
        let node = Node::new(delegate);
        let (one, two) = (node.ext4(), node.ext4());
        let targets = [node.stage(POD, "pv-1", &one, &[]), node.stage(POD, "pv-2", &two, &[])];
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &targets[0], "/data");
        assert_collected(&node, &[]);
        kill_and_remove_bundles(&[&sandbox, &app]);
        assert_collected(&node, &["bundle", "record", "sandbox", "user"]);
        for target in &targets {
            let [info, record] = ["mountInfo.json", "runcrust.json"].map(|file| node.entry(target).join(file));
            assert!(info.exists() && !record.exists(), "the volume is not staged, or still recorded as used");
            assert_next_pod_works(&node, POD, target);
        }
        node.unstage_all(&[&targets[0], &targets[1]]);
    }

    fn records_of_pods_killed_with_containerd_are_removed(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let containerd = Containerd::start(volume.dir(), &[("crust", &volume.handler().runtime())]);
        let pod = CriPod::run(&containerd, POD);
        let one = pod.app("one", &volume.target);
        let pids = [containerd.cri().pid(&one).unwrap(), pod.pid()];
        assert_collected(&volume, &[]);
        let shims = containerd.shims();
        containerd.kill_daemon();
        for pid in shims.into_iter().chain(pids) {
            process::kill_now(pid);
        }
        wait_until("the pod's processes to end", WAIT_TIMEOUT, || !pids.into_iter().any(process::is_alive));
        // containerd has not removed the bundles yet.
        assert_collected(&volume, &["record", "sandbox", "user"]);
        containerd.restart();
        let second = CriPod::with_config(&containerd, containerd.pod(POD).attempt(1));
        let two = second.start(&second.with("two", &volume.target).attempt(1));
        assert_eq!(containerd.cri().sh(&two, "echo on > /data/file; cat /data/file"), "on");
        second.end();
        pod.end();
        assert_collected(&volume, &["bundle"]);
        volume.unstage_all();
    }
}
