//! Pods and containers that share namespaces with each other or with the host.

use std::fs;

use runcrust_tests::cri::runtime_v1::NamespaceMode;
use runcrust_tests::{CriPod, POD, on_each_delegate};

use crate::scene::Scene;

on_each_delegate! {
    /// `kubectl debug --target` creates such a container.
    fn an_ephemeral_container_sees_processes_and_volume(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let target = &scene.target;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let _ = cri.sh(&one, "echo hello > /data/file");
        let debugger = pod.with("debugger", target).namespaces(|namespaces| {
            namespaces.pid = NamespaceMode::Target.into();
            namespaces.target_id.clone_from(&one);
        });
        let debugger = pod.start(&debugger);
        assert_eq!(cri.sh(&debugger, "cat /data/file"), "hello");
        assert_eq!(cri.sh(&debugger, "readlink /proc/self/ns/pid"), cri.sh(&one, "readlink /proc/self/ns/pid"));
        let through_proc = cri.sh(&debugger, "cat /proc/1/root/data/file");
        assert_eq!(through_proc, "hello", "not the target's mounts");
        // When the first process of the pid namespace ends, so do the others.
        cri.stop(&one).unwrap();
        let _ = cri.wait(&debugger);
        let restarted = pod.start(&pod.with("one", target).attempt(1));
        assert_eq!(cri.sh(&restarted, "cat /data/file"), "hello");
        scene.end(&pod);
    }

    fn containers_can_share_their_sandboxs_processes(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { device, target, containerd, .. } = &scene;
        let cri = scene.cri();
        let shared = |namespaces: &mut runcrust_tests::cri::runtime_v1::NamespaceOption| {
            namespaces.pid = NamespaceMode::Pod.into();
        };
        let pod = CriPod::with_config(containerd, containerd.pod(POD).namespaces(shared));
        let one = pod.start(&pod.with("one", target).namespaces(shared));
        let two = pod.start(&pod.with("two", target).namespaces(shared));
        let _ = cri.sh(&one, "echo hello > /data/file");
        assert_eq!(cri.sh(&two, "cat /data/file"), "hello");
        assert_eq!(cri.sh(&one, "readlink /proc/self/ns/pid"), cri.sh(&two, "readlink /proc/1/ns/pid"));
        // The sandbox is the first process of their pid namespace, so its end kills them.
        runcrust_tests::process::kill_now(pod.pid());
        let _ = (cri.wait(&one), cri.wait(&two));
        device.wait_until_free(runcrust_tests::node::WAIT_TIMEOUT);
        scene.end(&pod);
    }

    /// `hostPID` and `hostIPC`. Except for those with user namespaces, all pods of this suite have `hostNetwork`.
    fn a_pod_in_host_namespaces_mounts_its_volume_privately(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { device, target, containerd, .. } = &scene;
        let cri = scene.cri();
        let hosts = |namespaces: &mut runcrust_tests::cri::runtime_v1::NamespaceOption| {
            namespaces.pid = NamespaceMode::Node.into();
            namespaces.ipc = NamespaceMode::Node.into();
        };
        let pod = CriPod::with_config(containerd, containerd.pod(POD).namespaces(hosts));
        let one = pod.start(&pod.with("one", target).namespaces(hosts));
        assert_eq!(cri.sh(&one, "echo hello > /data/file; cat /data/file"), "hello");
        for kind in ["pid", "ipc", "net"] {
            let own = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert_eq!(cri.sh(&one, &format!("readlink /proc/self/ns/{kind}")), own.to_str().unwrap());
        }
        assert_eq!(device.host_mounts(), <[String; 0]>::default());
        scene.end(&pod);
    }
}
