//! Containers without a sandbox: plain bundles, as podman, docker or a person writes them, and bundles of CRI-O, whose
//! sandbox may not be a container.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{
    Bundle, Container, LoopDevice, MountWatcher, Node, POD, StagedVolume, on_each_delegate,
    wait_until,
};

use super::hook::with_mountpoint;
use super::{create_at_once, end, kill};

fn plain_bundle(node: &Node, source: &Path) -> Bundle {
    Bundle::plain(node.dir()).bind(source, "/data", &[])
}

/// Returns a container's bundle as CRI-O writes it: the pod is in the labels, the sandbox need not be a container, and
/// its namespaces are pinned files.
fn crio(node: &Node, source: &Path, pod_uid: &str) -> Bundle {
    let labels =
        format!(r#"{{"io.kubernetes.pod.uid":"{pod_uid}","io.kubernetes.container.name":"app"}}"#);
    plain_bundle(node, source)
        .annotation("io.kubernetes.cri-o.ContainerType", "container")
        .annotation("io.kubernetes.cri-o.SandboxID", "5a4db0c5")
        .annotation("io.kubernetes.cri-o.Labels", &labels)
        .annotation("io.kubernetes.pod.uid", pod_uid)
}

fn run(node: &Node, bundle: Bundle) -> Container {
    node.run(&bundle.write())
}

/// Asserts that the create is refused without a change to the config. Returns the error.
fn expect_refusal(node: &Node, bundle: Bundle) -> String {
    let bundle = bundle.write();
    let before = bundle.config_bytes();
    let container = node.container(&bundle);
    let _ = container.create().failure();
    assert_eq!(bundle.config_bytes(), before, "the config was changed");
    container.last_log_error().expect("an error in the log")
}

on_each_delegate! {
    fn a_plain_bundles_volume_never_appears_on_the_host(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let watcher = MountWatcher::start(volume.device.path());
        let bundle = volume.plain_bundle().bind(volume.target.join("some/sub"), "/sub", &["rbind", "ro"]);
        let container = run(&volume, bundle);
        let _ = container.sh("echo own > /data/file; echo sub > /data/some/sub/file");
        assert_eq!(container.sh("cat /sub/file; stat -c '%g %a' /data"), "sub\n4242 2775");
        let _ = container.exec(&["/bin/touch", "/sub/x"]).failure();
        assert_eq!(container.sh("ls -d /dev/crust /.crust 2>/dev/null | wc -l"), "0");
        let seen = container.sh("grep -c /data /proc/self/mountinfo");
        assert_eq!(seen, "1", "the container has other mounts of the volume");

        let answer = volume.stats().success();
        assert!(answer.stdout.contains("\"BYTES\""), "{answer}");
        let entry = volume.entry();
        assert!(entry.join("runtime-cli").exists());
        let refused = volume.unstage().failure();
        assert!(refused.stderr.contains(container.id()), "{refused}");

        watcher.assert_never_mounted();
        end([container]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert!(!entry.join("runtime-cli").exists());
        volume.unstage_all();
        fsck_ext4(volume.device.path());
        let file = with_mounted(volume.device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(file, b"own\n");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");
    }

    fn a_pods_containers_share_one_superblock_and_fsgroup_walk(delegate: Delegate) {
        let options = ["--fs-group", "4242", "--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let volume = StagedVolume::with(delegate, &options);
        let one = run(&volume, volume.plain_bundle());
        let _ = one.sh("echo x > /data/file; chgrp 7 /data/file");
        let two = run(&volume, volume.plain_bundle());
        assert_eq!(two.sh("cat /data/file; stat -c %g /data/file"), "x\n7", "fsGroup was applied to data in use");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
        end([one]);
        assert_eq!(two.sh("cat /data/file"), "x");
        let _ = volume.stats().success();
        end([two]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let three = run(&volume, volume.plain_bundle());
        assert_eq!(three.sh("stat -c %g /data/file"), "4242", "fsGroup was not applied to the new mount");
    }

    fn containers_created_at_once_share_the_superblock(delegate: Delegate) {
        for mode in ["bind", "hook"] {
            let options = ["--fs-group", "4242", "--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
            let volume = StagedVolume::on(Node::with(delegate, &format!("mount_mode = {mode:?}")), &options);
            let bundles = [(); 4].map(|()| with_mountpoint(volume.plain_bundle(), "/data"));
            let containers = create_at_once(&volume, bundles, |create| create);
            for container in &containers {
                let _ = container.sh("echo x >> /data/file");
                assert_eq!(container.sh("stat -c '%g %a' /data"), "4242 2775", "{mode}");
            }
            assert_eq!(containers[0].sh("cat /data/file | wc -l"), "4", "{mode}");
            end(containers);
            volume.unstage_all();
        }
    }

    fn a_volume_without_a_pod_in_its_path_has_one_container(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let target = node.dir().subdir("somewhere");
        let staged = node.try_stage(&target, device.path(), &["--access-mode", "SINGLE_NODE_SINGLE_WRITER"]);
        let _ = staged.success();
        let one = run(&node, plain_bundle(&node, &target));
        let error = expect_refusal(&node, plain_bundle(&node, &target));
        assert!(error.contains("ReadWriteOncePod") && error.contains(one.id()), "{error}");
        // Another container of the same name is accepted once the first one has ended, as when podman restarts a
        // container.
        kill(one.pid());
        let _ = one.delete_force();
        let bundle = plain_bundle(&node, &target);
        let two = run(&node, bundle);
        let _ = two.sh("echo x > /data/file");
    }

    fn a_plain_container_killed_with_everything_frees_the_device(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let container = run(&volume, volume.plain_bundle());
        kill(container.pid());
        let _ = volume.unstage().success();
        assert!(volume.device.is_free(), "unstage waits for the device");
    }

    fn a_device_mounted_on_the_host_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let error = with_mounted(volume.device.path(), |_| expect_refusal(&volume, volume.plain_bundle()));
        assert!(error.starts_with("volume pv-1: ") && error.contains("is in use"), "{error}");
        assert!(!volume.entry().join("runcrust.json").exists());
        let _ = run(&volume, volume.plain_bundle()).sh("true");
    }

    fn a_subpath_that_leads_out_is_refused_without_a_user(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| std::os::unix::fs::symlink("/etc", root.join("out")).unwrap());
        let volume = StagedVolume::on_device(node, device, &[]);
        let error = expect_refusal(&volume, plain_bundle(&volume, &volume.target.join("out")));
        assert!(error.starts_with("volume pv-1: ") && !error.contains("/etc"), "{error}");
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert!(!volume.entry().join("runcrust.json").exists());
    }

    /// If the relative link were passed on, the delegate would bind the directory, and data would be written to the
    /// node's disk.
    fn a_relative_source_is_matched_in_any_bundle(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = |name: &[u8]| {
            let bundle = plain_bundle(&volume, Path::new("link")).in_directory(OsStr::from_bytes(name));
            let bundle = bundle.write();
            symlink(&volume.target, bundle.path().join("link")).unwrap();
            bundle
        };
        let _ = volume.run(&bundle(b"utf8")).sh("echo x > /data/file");
        // A bundle's path that is not UTF-8 cannot be recorded.
        let container = volume.container(&bundle(b"not-\xff-utf8"));
        let error = container.expect_refusal();
        assert!(error.contains("isn't UTF-8, and a bundle with volumes"), "{error}");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0);
    }

    fn a_bundle_can_be_created_twice(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let container = volume.run(&bundle);
        let _ = container.sh("echo x > /data/file");
        container.stop();
        let _ = container.delete().success();
        let first = bundle.config_bytes();
        let second = volume.run(&bundle);
        assert_eq!(second.sh("cat /data/file"), "x");
        assert_eq!(bundle.config_bytes(), first, "the second plan has the same result");
    }

    fn crios_container_without_an_infra_container_has_its_volume(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--access-mode", "SINGLE_NODE_SINGLE_WRITER"]);
        let one = run(&volume, crio(&volume, &volume.target, POD));
        let _ = one.sh("echo x > /data/file");
        let two = run(&volume, crio(&volume, &volume.target.join("new"), POD));
        assert_eq!(two.sh("ls /data | wc -l"), "0");
        assert_eq!(one.sh("ls -d /data/new"), "/data/new");
        let record = fs::read_to_string(volume.entry().join("runcrust.json")).unwrap();
        assert!(record.contains("\"sandbox\":\"5a4db0c5\"") && record.contains(POD), "{record}");
    }

    fn crios_container_of_another_pod_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let error = expect_refusal(&volume, crio(&volume, &volume.target, "another-pod"));
        assert!(error.contains(&format!("its target path belongs to pod {POD}")), "{error}");
        let forged = crio(&volume, &volume.target, POD).annotation("io.kubernetes.pod.uid", "another-pod");
        let error = expect_refusal(&volume, forged);
        assert!(error.contains("so one of them was not set by kubelet"), "{error}");
        let unlabelled = crio(&volume, &volume.target, POD).annotation("io.kubernetes.cri-o.Labels", "{}");
        let error = expect_refusal(&volume, unlabelled);
        assert!(error.contains("doesn't contain the pod's UID"), "{error}");
        let unflattened = crio(&volume, &volume.target, POD).annotation("io.kubernetes.pod.uid", "");
        let error = expect_refusal(&volume, unflattened);
        assert!(error.contains("so one of them was not set by kubelet"), "{error}");
    }

    fn a_containerd_pod_with_crio_annotations_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, own) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        let _own = node.stage("attacker", "pv-2", &own, &[]);
        let labels = format!(r#"{{"io.kubernetes.pod.uid":"{POD}"}}"#);
        let forge = |bundle: Bundle, kind: &str| {
            bundle
                .annotation("io.kubernetes.cri-o.ContainerType", kind)
                .annotation("io.kubernetes.cri-o.SandboxID", "none")
                .annotation("io.kubernetes.cri-o.Labels", &labels)
                .annotation("io.kubernetes.pod.uid", POD)
        };
        let sandbox = node.run(&forge(node.sandbox_bundle("attacker"), "sandbox").write());
        assert_eq!(sandbox.sh("ls -d /.crust /dev/crust 2>/dev/null | wc -l"), "0");
        let honest = node.sandbox("attacker");
        let error = expect_refusal(&node, forge(node.app_bundle(&honest).bind(&target, "/data", &[]), "container"));
        assert!(error.contains("is containerd's and") && error.contains("pv-1"), "{error}");
        assert!(device.is_free());
    }

    fn a_second_device_on_the_same_file_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let second_device = LoopDevice::on(device.file());
        let target = node.stage(POD, "pv-1", &second_device, &[]);
        let error = with_mounted(device.path(), |_| expect_refusal(&node, plain_bundle(&node, &target)));
        assert!(error.contains("has the same backing file as") && error.contains("hint: "), "{error}");
        // A surviving child of a killed container still uses the device.
        let first = node.stage(POD, "pv-2", &device, &[]);
        let bundle = plain_bundle(&node, &first);
        let mut bundle = bundle.script("sleep 2147483647 & echo > /data/up; exec sleep 2147483647");
        let namespaces = bundle.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "pid");
        let container = run(&node, bundle);
        wait_until("the child to run", WAIT_TIMEOUT, || container.sh("ls /data").contains("up"));
        kill(container.pid());
        assert!(!device.is_free(), "the child does not use the device");
        let error = expect_refusal(&node, plain_bundle(&node, &target));
        assert!(error.contains("has the same backing file as"), "{error}");
    }

    fn crios_infra_container_is_an_ordinary_sandbox(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let labels = format!(r#"{{"io.kubernetes.pod.uid":"{POD}"}}"#);
        let mut infra = Bundle::plain(volume.dir())
            .annotation("io.kubernetes.cri-o.ContainerType", "sandbox")
            .annotation("io.kubernetes.cri-o.Labels", &labels)
            .annotation("io.kubernetes.pod.uid", POD);
        let id = infra.id().to_owned();
        infra = infra.annotation("io.kubernetes.cri-o.SandboxID", &id);
        let sandbox = run(&volume, infra);
        assert_eq!(sandbox.sh("cat /.crust/id"), id);
        let app = crio(&volume, &volume.target, POD).annotation("io.kubernetes.cri-o.SandboxID", &id);
        let app = run(&volume, app);
        let device_of = |path: &str| format!("stat -c %d {path}");
        assert_eq!(app.sh(&device_of("/data")), sandbox.sh(&device_of("/.crust/[0-9a-f]*[0-9a-f]")));
    }
}
