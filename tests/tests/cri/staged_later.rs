//! Volumes that are staged for a running pod, and pods whose volumes `crust_ops` or `crust_csi` manages.

use std::collections::HashMap;
use std::fs;

use runcrust_tests::csi::{Csi, create_request, filesystem, mount_of};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{CriPod, LoopDevice, Node, Ops, POD, host, on_each_delegate};

use crate::containerd;

on_each_delegate! {
    fn an_ordinary_sandbox_started_before_stage_is_reported(delegate: Delegate) {
        let node = Node::new(delegate);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let error = pod.expect_refusal(&pod.with("one", &target));
        for name in ["volume pv-1: ", pod.id(), "sandbox = \"always\""] {
            assert!(error.message.contains(name), "{name:?} is missing in: {error}");
        }
        assert!(device.is_free());
        pod.end();
        // kubelet then creates a new sandbox.
        let pod = CriPod::with_config(&containerd, containerd.pod(POD).attempt(1));
        let one = pod.app("one", &target);
        assert_eq!(cri.sh(&one, "echo x > /data/file; cat /data/file"), "x");
        pod.end_and_unstage(&node, &[&target]);
    }

    fn a_volume_can_be_published_to_a_running_pod(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let words = ["publish", utf8(&target), "--sandbox", pod.id(), "--device", utf8(device.path())];
        let _ = node.handler().crust(&[&words[..], &["--fstype", "ext4", "--fs-group", "2000"]].concat()).success();
        assert!(!device.mounts_of(pod.pid()).is_empty(), "the volume is not mounted in the sandbox");
        let one = pod.app("one", &target);
        assert_eq!(cri.sh(&one, "stat -c '%g %a' /data"), "2000 2775");
        pod.end_and_unstage(&node, &[&target]);
        assert!(device.is_free());
    }

    fn crust_ops_manages_a_pods_volume(delegate: Delegate) {
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

    fn crust_csi_defers_only_volumes_that_request_it(delegate: Delegate) {
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
        // Only the volume's context differs between the two pods.
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
