//! Pods from start to removal.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::kata::KataEntry;
use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::fsck;
use runcrust_tests::{
    CriPod, MountWatcher, Node, POD, StagedVolume, on_each_delegate, on_each_file_system,
};
use serde_json::json;

use crate::containerd;
use crate::scene::Scene;

on_each_delegate! {
    fn a_pod_has_its_volume_until_it_is_removed(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "2000"]);
        let Scene { node, device, target, .. } = &scene;
        let cri = scene.cri();
        let watcher = MountWatcher::start(device.path());

        let pod = scene.pod();
        let one = pod.app("one", target);
        let two = pod.app("two", &target.join("sub"));
        let _ = cri.sh(&one, "echo hello > /data/sub/file");
        assert_eq!(cri.sh(&two, "cat /data/file"), "hello");
        assert_eq!(cri.sh(&one, "stat -c %d /data"), cri.sh(&two, "stat -c %d /data"));
        assert_eq!(cri.sh(&two, "stat -c '%g %a' /data"), "2000 2775");
        let _ = node.stats(target).success();

        cri.stop(&two).unwrap();
        cri.remove(&two).unwrap();
        let restarted = pod.app("two", &target.join("sub"));
        assert_eq!(cri.sh(&restarted, "cat /data/file"), "hello");

        pod.end();
        watcher.assert_never_mounted();
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[target]);
        let left = fs::read_dir(target).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["sub"], "more than containerd's directory is left on the host");
        assert_eq!(fs::read_dir(target.join("sub")).unwrap().count(), 0);
    }

    /// The ordinary bind mounts are like those that kubelet makes of emptyDirs and files.
    fn a_pod_has_two_volumes_beside_ordinary_mounts(delegate: Delegate) {
        let node = Node::new(delegate);
        let (small, large) = (node.ext4(), node.formatted("xfs"));
        let first = node.stage(POD, "pv-1", &small, &[]);
        let second = node.stage(POD, "pv-2", &large, &["--fs-group", "2000"]);
        let scratch = node.dir().subdir("kubelet/pods/empty-dir");
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        for name in ["one", "two"] {
            let config = pod.with(name, &first).mount(&second, "/more").mount(&scratch, "/scratch");
            let app = pod.start(&config);
            let devices = cri.sh(&app, "grep -E ' /(data|more) ' /proc/self/mountinfo | cut -d' ' -f3");
            assert_eq!(devices, format!("{}\n{}", small.number(), large.number()));
            let _ = cri.sh(&app, "for at in data more scratch; do echo line >> /$at/file; done");
        }
        assert_eq!(fs::read_to_string(scratch.join("file")).unwrap(), "line\nline\n");
        pod.end_and_unstage(&node, &[&first, &second]);
        assert!(small.is_free() && large.is_free());
    }

    /// containerd resolves sources, so neither the bind mount nor the entry has the path that kubelet used.
    fn subpaths_and_kata_entries_are_found_behind_a_link(delegate: Delegate) {
        let node = Node::with(delegate, "kata_layout = true");
        let _ = node.dir().subdir("data/kubelet");
        symlink("data/kubelet", node.handler().kubelet_dir()).unwrap();
        let (device, katas) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        let for_kata = node.target(POD, "pv-2");
        let info = json!({"volume-type": "block", "device": katas.path(), "fstype": "ext4"});
        let _entry = KataEntry::add(&for_kata, &info);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        for (index, (volume, target)) in (0..).zip([("pv-1", &target), ("pv-2", &for_kata)]) {
            let subpath = SubPath { pod_uid: POD, volume, directory: target, path: "db", index };
            let bind = subpath.bind(&node.handler().kubelet_dir());
            let whole = pod.app(&format!("whole-{index}"), target);
            let part = pod.app(&format!("part-{index}"), &bind);
            let _ = cri.sh(&part, "echo hello > /data/file");
            assert_eq!(cri.sh(&whole, "cat /data/db/file"), "hello");
            assert_eq!(fs::read_dir(target.join("db")).unwrap().count(), 0);
        }
        pod.end();
        node.assert_released();
    }

    fn a_kubelet_directory_behind_a_link_leads_to_the_volume(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let real = node.dir().subdir("data/kubelet");
        symlink(&real, node.handler().kubelet_dir()).unwrap();
        let volume = StagedVolume::on_device(node, device, &[]);
        let containerd = containerd(&volume);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let one = pod.app("one", &volume.target);
        let mounted = cri.sh(&one, "grep ' /data ' /proc/self/mountinfo | cut -d' ' -f3");
        assert_eq!(mounted, volume.device.number());
        let config = fs::read_to_string(containerd.bundle(&one).join("config.json")).unwrap();
        assert!(config.contains("/run/attach/"), "{config}");
        pod.end_and_unstage(&volume, &[&volume.target]);
    }

    fn a_pod_without_deferred_volumes_is_passed_through(delegate: Delegate) {
        let node = Node::new(delegate);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let one = pod.app("one", &node.dir().subdir("plain"));
        let _ = cri.sh(&one, "echo x > /data/file");
        assert!(node.dir().join("plain/file").exists());
        for id in [pod.id(), &one] {
            let config = fs::read_to_string(containerd.bundle(id).join("config.json")).unwrap();
            assert!(!config.contains("crust-mount-hook") && !config.contains("/.crust"), "{config}");
        }
        pod.end();
    }

    fn nested_mounts_work_and_the_raw_device_is_unreadable(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, device, target, containerd } = &scene;
        let cri = scene.cri();
        let (above, below) = (node.dir().subdir("above"), node.dir().subdir("below"));
        fs::write(above.join("mark"), "above").unwrap();
        fs::write(below.join("mark"), "below").unwrap();
        let pod = scene.pod();
        let config = containerd.app("one").mount(&above, "/a");
        let config = config.mount(target, "/a/volume").mount(&below, "/a/volume/inner");
        let one = pod.start(&config.mount(target, "/not/there/yet").readonly_rootfs());
        let _ = cri.sh(&one, "echo own > /not/there/yet/mark");
        let marks = cri.sh(&one, "cat /a/mark /a/volume/mark /a/volume/inner/mark");
        assert_eq!(marks, "aboveown\nbelow");
        let (major, minor) = device.number().split_once(':').unwrap();
        let script = format!("mknod /a/raw b {major} {minor}; dd if=/a/raw of=/dev/null count=1");
        let raw = cri.exec(&one, &["/bin/sh", "-c", &script]).unwrap();
        assert!(raw.stderr.contains("can't open '/a/raw': Operation not permitted"), "{raw:?}");
        assert!(above.join("raw").exists(), "mknod failed");
        scene.end(&pod);
    }
}

on_each_file_system! {
    fn a_pod_has_its_volume_on(delegate: Delegate, fstype: &'static str) {
        let scene = Scene::on(delegate, fstype, &["--fs-group", "2000"]);
        let Scene { node, device, target, .. } = &scene;
        let cri = scene.cri();
        let watcher = MountWatcher::start(device.path());
        let pod = scene.pod();
        let one = pod.app("one", target);
        let two = pod.app("two", &target.join("deep/sub"));
        let _ = cri.sh(&two, "echo hello > /data/file");
        assert_eq!(cri.sh(&one, "cat /data/deep/sub/file; stat -c '%g %a' /data/deep"), "hello\n2000 2775");
        let mounted = cri.sh(&one, "grep ' /data ' /proc/self/mountinfo");
        assert!(mounted.contains(&format!(" - {fstype} ")), "{mounted}");
        let _ = node.stats(target).success();
        cri.stop(&one).unwrap();
        let restarted = pod.start(&pod.with("one", target).attempt(1));
        assert_eq!(cri.sh(&restarted, "cat /data/deep/sub/file"), "hello");
        watcher.assert_never_mounted();
        scene.end(&pod);
        fsck(fstype, device.path());
    }
}
