//! The same pod through a real containerd's CRI, with the handler `crust`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runcrust_tests::cri::runtime_v1::LinuxContainerResources;
use runcrust_tests::kata::KataEntry;
use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::{Containerd, Cri, MountWatcher, Node, on_each_delegate, process, wait_until};
use serde_json::json;

const POD: &str = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee";

/// containerd with runcrust as its handler `crust`.
fn containerd(node: &Node) -> Containerd {
    Containerd::start(node.dir(), &[("crust", &node.handler().runtime())])
}

/// A running app of a pod, with the volume at `/data`.
#[track_caller]
fn app(containerd: &Containerd, pod: &str, uid: &str, name: &str, source: &Path) -> String {
    let config = containerd.app(name).mount(utf8(source), "/data");
    containerd
        .cri()
        .run(pod, &config, &containerd.pod(uid))
        .unwrap()
}

fn remove_pod(cri: &Cri, pod: &str) {
    cri.stop_pod(pod).unwrap();
    cri.remove_pod(pod).unwrap();
}

on_each_delegate! {
    fn a_pod_has_its_volume_from_run_to_remove(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &["--fs-group", "2000"]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let watcher = MountWatcher::start(device.path());

        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let two = app(&containerd, &pod, POD, "two", &target.join("sub"));
        let _ = cri.sh(&one, "echo hello > /data/sub/file");
        assert_eq!(cri.sh(&two, "cat /data/file").trim(), "hello");
        assert_eq!(cri.sh(&one, "stat -c %d /data"), cri.sh(&two, "stat -c %d /data"));
        assert_eq!(cri.sh(&two, "stat -c '%g %a' /data").trim(), "2000 2775");
        let _ = node.stats(&target).success();

        cri.stop(&two).unwrap();
        cri.remove(&two).unwrap();
        let again = app(&containerd, &pod, POD, "two", &target.join("sub"));
        assert_eq!(cri.sh(&again, "cat /data/file").trim(), "hello");

        remove_pod(cri, &pod);
        watcher.assert_never_mounted();
        device.wait_until_free(PATIENCE);
        let _ = node.unstage(&target).success();
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
        let left = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["sub"], "containerd's empty directory, and no file");
        assert_eq!(fs::read_dir(target.join("sub")).unwrap().count(), 0);
    }

    /// containerd resolves sources: neither the bind nor the entry is where it says.
    fn behind_a_link_a_stock_kubelets_subpath_and_katas_layout_are_found_through_cri(delegate: Delegate) {
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
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        for (index, (volume, target)) in (0..).zip([("pv-1", &target), ("pv-2", &for_kata)]) {
            let subpath = SubPath { pod_uid: POD, volume, directory: target, path: "db", index };
            let bind = subpath.bind(&node.handler().kubelet_dir());
            let whole = app(&containerd, &pod, POD, &format!("whole-{index}"), target);
            let part = app(&containerd, &pod, POD, &format!("part-{index}"), &bind);
            let _ = cri.sh(&part, "echo hello > /data/file");
            assert_eq!(cri.sh(&whole, "cat /data/db/file").trim(), "hello");
            assert_eq!(fs::read_dir(target.join("db")).unwrap().count(), 0);
        }
        remove_pod(cri, &pod);
    }

    fn a_restarted_containerd_finds_the_pod_as_it_was(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let _ = cri.sh(&one, "echo hello > /data/file");
        containerd.restart();
        let cri = containerd.cri();
        assert_eq!(cri.sh(&one, "cat /data/file").trim(), "hello");
        let two = app(&containerd, &pod, POD, "two", &target);
        assert_eq!(cri.sh(&two, "cat /data/file").trim(), "hello");
        remove_pod(cri, &pod);
        device.wait_until_free(PATIENCE);
        let _ = node.unstage(&target).success();
    }

    fn a_failed_container_says_why_through_cri_and_works_once_the_cause_is_gone(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let info = node.entry(&target).join("mountInfo.json");
        let good = fs::read_to_string(&info).unwrap();
        fs::write(&info, good.replace("\"ext4\"", "\"ext9\"")).unwrap();

        let config = containerd.app("one").mount(utf8(&target), "/data");
        let created = cri.create(&pod, &config, &containerd.pod(POD)).unwrap();
        let error = cri.start(&created).unwrap_err();
        assert!(error.message.contains("volume pv-1: file system \"ext9\" isn't one of"), "{error:?}");
        assert!(error.message.contains("hint: "), "{error:?}");
        cri.remove(&created).unwrap();

        fs::write(&info, good).unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let _ = cri.sh(&one, "echo x > /data/file");
        remove_pod(cri, &pod);
    }

    fn a_failed_sandbox_says_why_through_cri(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        fs::remove_file(node.entry(&target).join("mountInfo.json")).unwrap();
        let containerd = containerd(&node);
        let error = containerd.cri().run_pod(&containerd.pod(POD), "crust").unwrap_err();
        assert!(error.message.contains("volume pv-1: ") && error.message.contains("mountInfo.json is missing"), "{error:?}");
    }

    fn another_pods_volume_is_refused_through_cri(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        let _mine = node.stage("other-pod", "pv-2", &other, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod("other-pod"), "crust").unwrap();
        let config = containerd.app("thief").mount(utf8(&target), "/data");
        let created = cri.create(&pod, &config, &containerd.pod("other-pod")).unwrap();
        let error = cri.start(&created).unwrap_err();
        assert!(error.message.contains("volume pv-1: its target path is of pod aaaaaaaa-"), "{error:?}");
        remove_pod(cri, &pod);
        assert!(device.is_free());
    }

    fn a_pod_without_deferred_volumes_is_left_alone(delegate: Delegate) {
        let node = Node::new(delegate);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &node.dir().subdir("plain"));
        let _ = cri.sh(&one, "echo x > /data/file");
        assert!(node.dir().join("plain/file").exists());
        for id in [&pod, &one] {
            let config = fs::read_to_string(containerd.bundle(id).join("config.json")).unwrap();
            assert!(!config.contains("crust-mount-hook") && !config.contains("/.crust"), "{config}");
        }
        remove_pod(cri, &pod);
    }

    fn a_kubelet_directory_behind_a_link_leads_to_the_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let real = node.dir().subdir("data/kubelet");
        std::os::unix::fs::symlink(&real, node.handler().kubelet_dir()).unwrap();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let mounted = cri.sh(&one, "grep ' /data ' /proc/self/mountinfo | cut -d' ' -f3");
        assert_eq!(mounted.trim(), device.number());
        let config = fs::read_to_string(containerd.bundle(&one).join("config.json")).unwrap();
        assert!(config.contains("/run/attach/"), "{config}");
        remove_pod(cri, &pod);
        let _ = node.unstage(&target).success();
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
    }

    fn mounts_around_the_volume_a_sealed_rootfs_and_the_raw_device(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let (above, below) = (node.dir().subdir("above"), node.dir().subdir("below"));
        fs::write(above.join("mark"), "above").unwrap();
        fs::write(below.join("mark"), "below").unwrap();
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let config = containerd.app("one").mount(utf8(&above), "/a");
        let config = config.mount(utf8(&target), "/a/volume").mount(utf8(&below), "/a/volume/inner");
        let config = config.mount(utf8(&target), "/not/there/yet").readonly_rootfs();
        let one = cri.run(&pod, &config, &containerd.pod(POD)).unwrap();
        let _ = cri.sh(&one, "echo own > /not/there/yet/mark");
        let marks = cri.sh(&one, "cat /a/mark /a/volume/mark /a/volume/inner/mark");
        assert_eq!(marks, "aboveown\nbelow");
        let (major, minor) = device.number().split_once(':').unwrap();
        let script = format!("mknod /a/raw b {major} {minor}; dd if=/a/raw of=/dev/null count=1");
        let raw = cri.exec(&one, &["/bin/sh", "-c", &script]).unwrap();
        assert!(raw.stderr.contains("can't open '/a/raw': Operation not permitted"), "{raw:?}");
        assert!(above.join("raw").exists(), "mknod worked");
        remove_pod(cri, &pod);
    }

    fn a_pod_whose_pause_died_keeps_its_data_until_its_app_ends(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let _ = cri.sh(&one, "echo live > /data/file");
        let pause = cri.pod_pid(&pod).unwrap();
        process::kill_now(pause);
        wait_until("pause to end", PATIENCE, || !process::is_alive(pause));
        assert_eq!(cri.sh(&one, "cat /data/file").trim(), "live");
        let _ = node.stats(&target).success();
        let _ = node.unstage(&target).failure();
        remove_pod(cri, &pod);
        device.wait_until_free(PATIENCE);
        let _ = node.unstage(&target).success();
    }

    /// containerd sends the rules that it knows of.
    fn an_update_of_the_resources_leaves_a_workload_its_device(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &["--device-node"]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let read = "dd if=$(ls /dev/crust/*) of=/dev/null count=1 2>/dev/null && echo read";
        assert_eq!(cri.sh(&one, read), "read");
        let resources = LinuxContainerResources { cpu_shares: 512, ..Default::default() };
        cri.update(&one, &resources).unwrap();
        assert_eq!(cri.sh(&one, read), "read");
        remove_pod(cri, &pod);
    }

    fn a_lost_entry_is_refused_through_cri(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        fs::remove_dir_all(node.entry(&target)).unwrap();
        let config = containerd.app("one").mount(utf8(&target), "/data");
        let created = cri.create(&pod, &config, &containerd.pod(POD)).unwrap();
        let error = cri.start(&created).unwrap_err();
        assert!(error.message.contains("volume pv-1: nothing is staged for"), "{error:?}");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        remove_pod(cri, &pod);
    }

    fn everything_killed_at_once_leaves_the_device_free(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let one = app(&containerd, &pod, POD, "one", &target);
        let pids = [cri.pid(&one).unwrap(), cri.pod_pid(&pod).unwrap()];
        let shims = process::with_command_line(|line| {
            line.contains("containerd-shim") && line.contains(utf8(&containerd.socket()))
        });
        containerd.kill_daemon();
        for pid in shims.into_iter().chain(pids) {
            process::kill_now(pid);
        }
        device.wait_until_free(PATIENCE);
        wait_until("the pod's processes to end", PATIENCE, || !pids.into_iter().any(process::is_alive));
        let _ = node.unstage(&target).success();
        assert!(!node.entry(&target).exists());
        containerd.restart();
    }
}
