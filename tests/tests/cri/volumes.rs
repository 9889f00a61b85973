//! Views of a volume in containers: subPaths, read-only mounts, groups, several pods, and the raw device.

use std::fs;

use runcrust_tests::cri::runtime_v1::{LinuxContainerResources, MountPropagation};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{CriPod, Node, POD, StagedVolume, on_each_delegate, wait_until};

use crate::scene::Scene;
use crate::{OTHER_POD, containerd};

on_each_delegate! {
    /// containerd creates a missing source on the host as a directory, whatever the volume has there.
    fn subpaths_are_the_volumes_directories_and_files(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir(root.join("etc")).unwrap();
            fs::write(root.join("etc/app.conf"), "mine\n").unwrap();
            std::os::unix::fs::symlink("etc", root.join("link")).unwrap();
        });
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "2000"]);
        let containerd = containerd(&volume);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let config = pod.with("one", &volume.target)
            .mount(volume.target.join("etc"), "/config")
            .mount(volume.target.join("link"), "/by-link")
            .mount(volume.target.join("etc/app.conf"), "/etc/app.conf")
            .mount_readonly(volume.target.join("etc/app.conf"), "/deep/er/app.conf")
            .mount(volume.target.join("new/and/deep"), "/new");
        let one = pod.start(&config);
        assert_eq!(cri.sh(&one, "cat /config/app.conf /by-link/app.conf"), "mine\nmine");
        let _ = cri.sh(&one, "echo more >> /etc/app.conf; echo new > /new/file");
        assert_eq!(cri.sh(&one, "cat /deep/er/app.conf /data/new/and/deep/file"), "mine\nmore\nnew");
        assert_eq!(cri.sh(&one, "stat -c '%g %a' /new"), "2000 2775", "unlike the volume's root");
        assert_eq!(cri.sh(&one, "echo x 2>/dev/null >> /deep/er/app.conf || echo refused"), "refused");
        pod.end_and_unstage(&volume, &[&volume.target]);
        let on_host = fs::read_dir(volume.target.join("new/and/deep")).unwrap().count();
        assert_eq!(on_host, 0, "files are left on the host");
        let read = |root: &std::path::Path| fs::read_to_string(root.join("etc/app.conf")).unwrap();
        assert_eq!(with_mounted(volume.device.path(), read), "mine\nmore\n");
    }

    fn a_mount_or_a_whole_volume_can_be_read_only(delegate: Delegate) {
        let node = Node::new(delegate);
        let (writable, sealed, frozen) = (node.ext4(), node.ext4(), node.ext4());
        let first = node.stage(POD, "pv-1", &writable, &[]);
        let second = node.stage(POD, "pv-2", &sealed, &["--read-only", "--fs-group", "2000"]);
        let options = ["--option", "ro", "--fs-group", "2000"];
        let third = node.stage(POD, "pv-3", &frozen, &options);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pod = CriPod::run(&containerd, POD);
        let config = pod.with("one", &first).mount_readonly(&first, "/view");
        let config = config.mount(&second, "/sealed").mount(&third, "/frozen");
        let one = pod.start(&config);
        let _ = cri.sh(&one, "echo x > /data/file; cat /view/file");
        for at in ["/view", "/sealed", "/frozen"] {
            let done = cri.exec(&one, &["/bin/touch", &format!("{at}/new")]).unwrap();
            assert!(done.stderr.contains("Read-only file system"), "{done:?}");
        }
        // `--read-only` makes only the views read-only, because another pod may write through the same superblock.
        for (at, superblock) in [("/view", "rw"), ("/sealed", "rw"), ("/frozen", "ro")] {
            let line = cri.sh(&one, &format!("grep ' {at} ' /proc/self/mountinfo"));
            let options = line.rsplit(' ').next().unwrap().split(',').next().unwrap();
            assert_eq!(options, superblock, "{line}");
        }
        for at in ["/sealed", "/frozen"] {
            let group = cri.sh(&one, &format!("stat -c %g {at}"));
            assert_eq!(group, "0", "fsGroup was applied to a read-only volume");
        }
        pod.end_and_unstage(&node, &[&first, &second, &third]);
    }

    fn only_members_of_the_fsgroup_can_write(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--fs-group", "2000"]);
        let target = &scene.target;
        let (cri, pod) = (scene.cri(), scene.pod());
        let member = pod.start(&pod.with("member", target).user(1000, &[2000]));
        assert_eq!(cri.sh(&member, "echo x > /data/file; stat -c %u:%g /data/file"), "1000:2000");
        let other_user = pod.start(&pod.with("other-user", target).user(1001, &[2001]));
        let done = cri.exec(&other_user, &["/bin/touch", "/data/other"]).unwrap();
        assert!(done.stderr.contains("Permission denied"), "{done:?}");
        scene.end(&pod);
    }

    fn two_pods_share_a_device_and_either_may_end_first(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let mine = node.stage(POD, "pv-1", &device, &[]);
        let theirs = node.stage(OTHER_POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let (a, b) = (CriPod::run(&containerd, POD), CriPod::run(&containerd, OTHER_POD));
        let (one, two) = (a.app("one", &mine), b.app("two", &theirs));
        let _ = cri.sh(&one, "echo from a > /data/file");
        assert_eq!(cri.sh(&two, "cat /data/file; stat -c %d /data"), format!("from a\n{}", cri.sh(&one, "stat -c %d /data")));
        a.end();
        let _ = node.unstage(&mine).success();
        assert!(!device.is_free());
        assert_eq!(cri.sh(&two, "echo on >> /data/file; cat /data/file"), "from a\non");
        b.end_and_unstage(&node, &[&theirs]);
        assert!(device.is_free());
    }

    /// Tests `HostToContainer` and `Bidirectional`. containerd requires a shared mount on the host for one of them.
    fn a_volumes_mounts_never_propagate_to_the_host(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { device, target, containerd, .. } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let mount = |name, propagation| containerd.app(name).mount_as(target, "/data", false, propagation);
        let one = pod.start(&mount("one", MountPropagation::PropagationHostToContainer));
        let line = cri.sh(&one, "echo x > /data/file; grep ' /data ' /proc/self/mountinfo");
        assert!(!line.contains("shared:"), "{line}");
        let error = pod.expect_refusal(&mount("two", MountPropagation::PropagationBidirectional));
        assert!(error.message.contains("volume pv-1: ") && error.message.contains("Bidirectional"), "{error}");
        assert_eq!(device.host_mounts(), <[String; 0]>::default());
        scene.end(&pod);
    }

    /// containerd sends only the device rules that it knows of.
    fn a_workload_keeps_its_device_after_an_update(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--device-node"]);
        let Scene { target, containerd, .. } = &scene;
        let (cri, pod) = (scene.cri(), scene.pod());
        let one = pod.app("one", target);
        let reader = pod.start(&containerd.app("reader").mount_readonly(target, "/data"));
        let read = "dd if=$(ls /dev/crust/*) of=/dev/null count=1 2>/dev/null && echo read";
        let write = "(: >> $(ls /dev/crust/*)) 2>/dev/null && echo opened || echo refused";
        assert_eq!(cri.sh(&one, read), "read");
        let resources = LinuxContainerResources { cpu_shares: 512, ..Default::default() };
        for id in [&one, &reader] {
            cri.update(id, &resources).unwrap();
            assert_eq!(cri.sh(id, read), "read");
        }
        assert_eq!(cri.sh(&one, write), "opened");
        assert_eq!(cri.sh(&reader, write), "refused", "a read-only container opened the device for writing");
        scene.end(&pod);
    }

    fn errors_of_a_volume_are_reported_while_its_pod_runs(delegate: Delegate) {
        let scene = Scene::new(delegate, &["--option", "errors=continue"]);
        let pod = scene.pod();
        let one = pod.app("one", &scene.target);
        let stats = || scene.node.stats(&scene.target).success().stdout;
        assert!(stats().contains("\"abnormal\":false"), "{}", stats());
        scene.device.fail_ext4();
        wait_until("the error to count", WAIT_TIMEOUT, || stats().contains("\"abnormal\":true"));
        assert_eq!(scene.cri().sh(&one, "echo x > /data/file; cat /data/file"), "x");
        scene.end(&pod);
    }
}
