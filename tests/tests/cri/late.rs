//! Volumes that come when the pod is there already, and what `crust_ops` does for one that runs.

use std::collections::HashMap;
use std::fs;

use runcrust_tests::csi::{Csi, create_request, filesystem, mount_of};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{CriPod, LoopDevice, Node, Ops, POD, host, on_each_delegate};

use crate::containerd;

on_each_delegate! {
    fn a_pod_from_before_the_staging_is_told_what_it_lacks(delegate: Delegate) {
        let node = Node::new(delegate);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let error = pod.expect_refusal(&pod.with("one", &target));
        for name in ["volume pv-1: ", pod.id(), "sandbox = \"always\""] {
            assert!(error.message.contains(name), "{name:?} isn't in: {error}");
        }
        assert!(device.is_free());
        pod.end();
        // What kubelet does about it: a new sandbox.
        let pod = CriPod::of(&containerd, containerd.pod(POD).attempt(1));
        let one = pod.app("one", &target);
        assert_eq!(cri.sh(&one, "echo x > /data/file; cat /data/file"), "x");
        pod.end_and_unstage(&node, &[&target]);
    }

    fn a_volume_is_published_to_a_pod_that_runs(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let words = ["publish", utf8(&target), "--sandbox", pod.id(), "--device", utf8(device.path())];
        let _ = node.handler().crust(&[&words[..], &["--fstype", "ext4", "--fs-group", "2000"]].concat()).success();
        assert!(!device.mounts_of(pod.pid()).is_empty(), "it is there before any container");
        let one = pod.app("one", &target);
        assert_eq!(cri.sh(&one, "stat -c '%g %a' /data"), "2000 2775");
        pod.end_and_unstage(&node, &[&target]);
        assert!(device.is_free());
    }

    fn crust_ops_stages_counts_grows_and_unstages(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let device = LoopDevice::formatted(node.dir(), "xfs", 320);
        let target = node.target(POD, "pv-1");
        ops.stage(stage_request(&target, &device)).unwrap();
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let one = pod.app("one", &target);
        let size = || -> u64 { cri.sh(&one, "df -k /data | tail -n 1 | awk '{print $2}'").parse().unwrap() };
        let before = (size(), ops.stats(&target).unwrap().usage[0].total);
        device.set_size(512 << 20);
        assert_eq!(ops.expand(&target, 0, 0).unwrap(), 512 << 20);
        let after = (size(), ops.stats(&target).unwrap().usage[0].total);
        assert!(after.0 > before.0 && after.1 > before.1, "{before:?}, {after:?}");
        let error = ops.unstage(&target).unwrap_err();
        assert!(error.message().contains(pod.id()), "{error}");
        pod.end();
        node.assert_released();
        ops.unstage(&target).unwrap();
        device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }

    fn crust_csi_defers_for_a_pod_and_mounts_for_the_next(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let _ops = Ops::start(&node);
        let csi = Csi::start(&node);
        let mut request = create_request("pv-1", filesystem("ext4"));
        request.parameters.insert("crust.dev/defer".to_owned(), "true".to_owned());
        let mut volume = csi.create_volume(request);
        mount_of(&mut volume.capability).volume_mount_group = "2000".into();
        csi.call(volume.stage()).unwrap();
        let target = csi.target(POD, "pv-1");
        let containerd = containerd(&node);
        let cri = containerd.cri();
        // As kubelet does each: the volume's context is the pod's only difference.
        for (written, context) in [("deferred", volume.context.clone()), ("plain", HashMap::new())] {
            volume.context = context;
            csi.call(volume.publish(&target)).unwrap();
            let on_the_host = host::mounts_of_device(&csi.device(&volume.id)).len();
            assert_eq!(on_the_host, usize::from(written == "plain"));
            let pod = CriPod::run(&containerd, POD);
            let one = pod.app("one", &target);
            assert_eq!(cri.sh(&one, "stat -c '%g %a' /data"), "2000 2775");
            let script = format!("echo {written} >> /data/file; head -n 1 /data/file");
            assert_eq!(cri.sh(&one, &script), "deferred");
            assert!(!csi.call(volume.stats(&target)).unwrap().volume_condition.unwrap().abnormal);
            pod.end();
            node.assert_released();
            csi.call(volume.unpublish(&target)).unwrap();
        }
        csi.call(volume.unstage()).unwrap();
        csi.call(volume.delete()).unwrap();
    }
}
