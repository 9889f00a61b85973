//! The pods that belong to an agent, and the location of its root directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use runcrust_tests::manifests::Pod;
use runcrust_tests::node::utf8;
use runcrust_tests::{host, mounts, on_each_delegate};

use crate::scene::{Scene, microvm, pod_with};

/// Asserts that none of the pod's containers has been restarted.
#[track_caller]
fn assert_untouched(scene: &Scene, pod: &Pod, containers: &[String]) {
    assert_eq!(scene.running(pod), containers);
}

on_each_delegate! {
    fn two_agents_on_one_runtime_leave_each_other_alone(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let first = pod_with("web", "data", true);
        scene.run(&first);
        let containers = scene.running(&first);
        // Both have the same node name, the host's.
        let other = scene.crustlet.start_another("other");
        let second = Pod::new("second");
        other.write("second", &second.to_string());
        other.wait_pod("second", "Running");
        assert_untouched(&scene, &first, &containers);
        assert_eq!(other.all("pods").len(), 1);
        assert_eq!(scene.crustlet.all("pods").len(), 1);
        scene.assert_deferred(&first, &data);
        // A restart of one agent changes nothing, either.
        scene.crustlet.restart(&[]);
        scene.crustlet.wait_pod("web", "Running");
        assert_untouched(&scene, &first, &containers);
        other.wait_pod("second", "Running");
        scene.end(&first);
        other.wait_pod("second", "Running");
        other.remove("second");
        other.wait_gone(&second.uid());
        scene.assert_nothing_left(&[&data]);
    }

    fn a_renamed_node_keeps_its_pods(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let pod = pod_with("web", "data", true).claim("logs").mount("logs", "/logs");
        scene.run(&pod);
        let containers = scene.running(&pod);
        scene.crustlet.restart(&["--node-name=another"]);
        scene.crustlet.wait("the pod to be shown", || {
            scene.crustlet.pod("web")["status"]["phase"] == "Running"
        });
        assert_untouched(&scene, &pod, &containers);
        scene.sh(&pod, "echo there > /data/file; echo there > /logs/file");
        // The manifest is removed while no agent runs. The pod ends, and then its volumes.
        scene.crustlet.kill();
        scene.crustlet.remove("web");
        scene.crustlet.spawn(scene.crustlet.command(&["--node-name=a-third"]));
        scene.crustlet.wait_gone(&pod.uid());
        scene.assert_nothing_left(&[&data, &logs]);
    }

    /// The kernel lists mounts with paths that contain no links and no `..`.
    fn a_root_directory_may_be_a_link(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let root = scene.crustlet.root().to_owned();
        let link = root.with_file_name("link");
        symlink(&root, &link).unwrap();
        let ways = [utf8(&link).to_owned(), format!("{}/pods/..", root.display())];
        let [by_link, by_parent] = ways.map(|way| format!("--root-dir={way}"));
        scene.crustlet.restart(&[&by_link]);
        let pod = pod_with("web", "data", true).claim("logs").mount_as("logs", "/logs", "subPath: a");
        let pod = pod.volume("scratch", "emptyDir: {}").mount_as("scratch", "/scratch", "subPath: b");
        scene.run(&pod);
        scene.assert_deferred(&pod, &data);
        scene.sh(&pod, "echo kept > /logs/file; echo x > /scratch/file");
        scene.crustlet.restart(&[&by_parent]);
        scene.crustlet.wait_pod("web", "Running");
        assert!(scene.crustlet.target(&pod.uid(), &logs.pv).join("a/file").exists());
        scene.end(&pod);
        assert_eq!(host::mounts_below(&root), Vec::<PathBuf>::new());
        assert_eq!(scene.crustlet.leftovers(), Vec::<PathBuf>::new());
        let kept = scene.inspect(&logs, |root| fs::read_to_string(root.join("a/file")).unwrap());
        assert_eq!(kept, "kept\n");
        scene.assert_nothing_left(&[&data, &logs]);
    }

    /// An administrator's mount, or a workload's mount that was propagated to the host.
    fn a_foreign_mount_keeps_a_pods_directory(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let pod = microvm("web").volume("scratch", "emptyDir: {}").mount("scratch", "/scratch");
        scene.run(&pod);
        scene.sh(&pod, "mkdir -p /scratch/a/b; echo x > /scratch/a/file");
        let kept = scene.node.dir().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "data").unwrap();
        let directory = scene.crustlet.pod_dir(&pod.uid()).join("volumes/kubernetes.io~empty-dir/scratch/a/b");
        mounts::bind(&kept, &directory);
        scene.crustlet.remove("web");
        scene.crustlet.wait_event("pod/web", "FailedCleanup");
        assert!(kept.join("file").exists());
        assert!(directory.join("file").exists());
        mounts::unmount(&directory);
        scene.crustlet.wait_gone(&pod.uid());
        assert!(kept.join("file").exists());
        assert!(!scene.crustlet.pod_dir(&pod.uid()).exists());
        scene.assert_nothing_left(&[]);
    }
}
