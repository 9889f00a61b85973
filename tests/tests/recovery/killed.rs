//! SIGKILL for whole pods, containerd and its shims. Who is killed at a step of its own is the suite
//! `interrupted`'s, and `crust_ops` `ops`'.

use runcrust_tests::container::kill_and_remove_bundles;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Containerd, CriPod, Node, POD, StagedVolume, on_each_delegate, process, wait_until,
};

use crate::{assert_collected, next_works};

on_each_delegate! {
    fn a_pod_and_all_that_it_runs(delegate: Delegate) {
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
            assert!(info.exists() && !record.exists(), "what is staged stays");
            next_works(&node, POD, target);
        }
        node.unstage_all(&[&targets[0], &targets[1]]);
    }

    fn containerd_its_shims_and_its_pods(delegate: Delegate) {
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
        // The bundles are containerd's, and there until it comes again.
        assert_collected(&volume, &["record", "sandbox", "user"]);
        containerd.restart();
        let again = CriPod::of(&containerd, containerd.pod(POD).attempt(1));
        let two = again.start(&again.with("two", &volume.target).attempt(1));
        assert_eq!(containerd.cri().sh(&two, "echo on > /data/file; cat /data/file"), "on");
        again.end();
        pod.end();
        assert_collected(&volume, &["bundle"]);
        volume.unstage_all();
    }
}
