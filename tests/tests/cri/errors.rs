//! What is wrong with a volume comes out of the CRI whole, and both sides work again once it is
//! mended.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use runcrust_tests::cri::runtime_v1::{ContainerConfig, ContainerState};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, CriPod, LoopDevice, Node, POD, StagedVolume, on_each_delegate, refusal,
};

use crate::scene::Scene;
use crate::{OTHER_POD, containerd};

/// The whole sentence is there, once; what containerd puts around it, which differs from version to version, tells
/// nothing of ours again.
#[track_caller]
fn assert_tells(message: &str, sentence: &str) {
    let around: Vec<&str> = message.split(sentence).collect();
    let [before, after] = around[..] else {
        panic!("{sentence:?} isn't there once: {message}");
    };
    let is_ours = |text: &str| {
        ["pv-1", "crust", "hint: "]
            .iter()
            .any(|word| text.contains(word))
    };
    assert!(!is_ours(before) && !is_ours(after), "{message}");
}

/// What the command line says of the same mount in the same pod.
fn told_at_the_command_line(node: &Node, pod: &CriPod<'_>, source: &Path) -> String {
    let bundle = Bundle::plain(node.dir())
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotation("io.kubernetes.cri.sandbox-id", pod.id());
    let bundle = bundle.bind(source, "/data", &[]).write();
    refusal::create_refused(node, &bundle)
        .naming_volume("pv-1")
        .message()
}

/// The container of a pod that runs can't be started: in one call's error and in the container's
/// status stands what the command line says.
#[track_caller]
fn assert_refused(node: &Node, pod: &CriPod<'_>, container: &ContainerConfig, names: &[&str]) {
    let source = PathBuf::from(&container.mounts[0].host_path);
    let sentence = told_at_the_command_line(node, pod, &source);
    assert_contains(&sentence, names);
    let id = pod.create(container);
    let error = pod.cri().start(&id).expect_err("it is refused");
    assert_tells(&error.message, &sentence);
    let status = pod.cri().status(&id).unwrap();
    let told = (status.state(), status.exit_code, status.reason.as_str());
    assert_eq!(told, (ContainerState::ContainerExited, 128, "StartError"));
    assert_eq!(status.message, error.message);
    pod.cri().remove(&id).unwrap();
}

/// Changes a text file for a time.
fn with_text<T>(file: &Path, change: impl FnOnce(&str) -> String, work: impl FnOnce() -> T) -> T {
    let good = fs::read_to_string(file).unwrap();
    fs::write(file, change(&good)).unwrap();
    let result = work();
    fs::write(file, good).unwrap();
    result
}

/// A pod with a place for a volume that is staged later: nothing was mounted before.
fn on_a_late_volume(
    delegate: runcrust_tests::Delegate,
    device: impl FnOnce(&Node) -> LoopDevice,
    check: impl FnOnce(&Node, &CriPod<'_>, &Path, &LoopDevice),
) {
    let node = Node::with(delegate, "sandbox = \"always\"");
    let containerd = containerd(&node);
    let pod = CriPod::run(&containerd, POD);
    let device = device(&node);
    let target = node.stage(POD, "pv-1", &device, &[]);
    check(&node, &pod, &target, &device);
    let one = pod.app("works", &target);
    let _ = pod.cri().sh(&one, "echo x > /data/file");
    pod.end_and_unstage(&node, &[&target]);
    assert!(device.is_free());
}

on_each_delegate! {
    fn of_what_is_staged(delegate: Delegate) {
        on_a_late_volume(delegate, Node::ext4, |node, pod, target, device| {
            let info = node.entry(target).join("mountInfo.json");
            let app = pod.with("one", target);
            let cases: [(&str, &str, &[&str]); 4] = [
                ("\"ext4\"", "\"ext9\"", &["file system \"ext9\" isn't one of", "hint: "]),
                ("\"ext4\"", "\"xfs\"", &["fsconfig(", "holds ext4, not xfs", "hint: "]),
                (utf8(device.path()), "/dev/runcrust-has-no-such", &["/dev/runcrust-has-no-such", "ENOENT"]),
                ("\"ext4\"", "\"ext4\",\"options\":[\"nonsense\"]", &["fsconfig(", "nonsense"]),
            ];
            for (attempt, (good, bad, names)) in (0..).zip(cases) {
                let spoil = |text: &str| {
                    assert!(text.contains(good), "{text}");
                    text.replace(good, bad)
                };
                let app = app.clone().attempt(attempt);
                with_text(&info, spoil, || assert_refused(node, pod, &app, names));
            }
            let app = app.attempt(9);
            with_text(&info, |_| "{".to_owned(), || {
                assert_refused(node, pod, &app, &[utf8(&info), "isn't JSON"]);
            });
            assert!(device.is_free());
        });
    }

    fn of_a_device_that_somebody_has(delegate: Delegate) {
        on_a_late_volume(delegate, Node::ext4, |node, pod, target, device| {
            with_mounted(device.path(), |_| {
                let app = pod.with("one", target);
                assert_refused(node, pod, &app, &["in use by a user that runcrust has no record of", utf8(device.path())]);
            });
        });
    }

    fn of_a_device_without_a_file_system(delegate: Delegate) {
        let blank = |node: &Node| LoopDevice::new(node.dir(), 32);
        on_a_late_volume(delegate, blank, |node, pod, target, device| {
            let app = pod.with("one", target);
            assert_refused(node, pod, &app, &["no file system", "runcrust never does"]);
            runcrust_tests::volume::mkfs("ext4", device.path(), &[]);
        });
    }

    fn of_subpaths_that_lead_out(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            symlink("/etc", root.join("outside")).unwrap();
            symlink("../../../../etc", root.join("upwards")).unwrap();
            fs::write(root.join("file"), "").unwrap();
        });
        let volume = StagedVolume::of(node, device, &[]);
        let containerd = containerd(&volume);
        let pod = CriPod::run(&containerd, POD);
        for (attempt, path) in (0..).zip(["outside", "upwards/x", "file/below"]) {
            let app = pod.with("one", &volume.target.join(path)).attempt(attempt);
            assert_refused(&volume, &pod, &app, &[path]);
        }
        let _ = pod.app("two", &volume.target.join("inside"));
        pod.end_and_unstage(&volume, &[&volume.target]);
    }

    fn of_another_pod_on_the_device(delegate: Delegate) {
        let once = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let cases: [(&[&str], &[&str]); 2] = [
            (&once, &["SINGLE_NODE_SINGLE_WRITER", "ReadWriteOncePod"]),
            (&["--option", "commit=7"], &["commit=7"]),
        ];
        let node = Node::new(delegate);
        let containerd = containerd(&node);
        for (attempt, (options, names)) in (0..).zip(cases) {
            let device = node.ext4();
            let theirs = node.stage(OTHER_POD, "pv-1", &device, options);
            let other = CriPod::of(&containerd, containerd.pod(OTHER_POD).attempt(attempt));
            let holder = other.app("holder", &theirs);
            let mine = node.stage(POD, "pv-1", &device, &[]);
            let pod = CriPod::of(&containerd, containerd.pod(POD).attempt(attempt));
            let app = pod.with("one", &mine);
            assert_refused(&node, &pod, &app, &[&[other.id(), OTHER_POD], names].concat());
            let _ = pod.cri().sh(&holder, "echo on > /data/file");
            other.end();
            let one = pod.start(&app.attempt(1));
            assert_eq!(pod.cri().sh(&one, "cat /data/file"), "on");
            pod.end_and_unstage(&node, &[&theirs, &mine]);
        }
    }

    fn of_another_pods_volume(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "sandbox = \"always\""), &[]);
        let containerd = containerd(&volume);
        let pod = CriPod::run(&containerd, OTHER_POD);
        let thief = pod.with("thief", &volume.target);
        assert_refused(&volume, &pod, &thief, &["its target path is of pod", POD, OTHER_POD]);
        assert!(volume.device.is_free());
        pod.end_and_unstage(&volume, &[&volume.target]);
    }

    /// The host's directory, which a container would get instead, stays empty.
    fn of_what_is_lost_or_half_there(delegate: Delegate) {
        let node = Node::new(delegate);
        let real = node.dir().subdir("data/kubelet");
        symlink(&real, node.handler().kubelet_dir()).unwrap();
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let containerd = containerd(&node);
        let pod = CriPod::run(&containerd, POD);
        let resolved = node.entry(&target.canonicalize().unwrap());
        let aside = node.dir().join("aside");
        fs::rename(&resolved, &aside).unwrap();
        assert_refused(&node, &pod, &pod.with("one", &target), &["half staged"]);
        let given = node.dir().join("given");
        fs::rename(node.entry(&target), &given).unwrap();
        let app = pod.with("one", &target).attempt(1);
        assert_refused(&node, &pod, &app, &["nothing is staged for"]);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        fs::rename(&given, node.entry(&target)).unwrap();
        fs::rename(&aside, &resolved).unwrap();
        let _ = pod.app("two", &target);
        pod.end_and_unstage(&node, &[&target]);
    }

    /// What runs is left alone, and the next sandbox is known again.
    fn of_a_sandbox_whose_record_was_lost(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let pod = scene.pod();
        let one = pod.app("one", &scene.target);
        fs::remove_dir_all(scene.node.handler().state_dir()).unwrap();
        let two = pod.with("two", &scene.target);
        assert_refused(&scene.node, &pod, &two, &["there is no record of", pod.id()]);
        let _ = scene.cri().sh(&one, "echo kept > /data/file");
        pod.end();
        scene.device.wait_until_free(WAIT_TIMEOUT);
        let pod = CriPod::of(&scene.containerd, scene.containerd.pod(POD).attempt(1));
        let one = pod.app("one", &scene.target);
        assert_eq!(scene.cri().sh(&one, "cat /data/file"), "kept");
        scene.end(&pod);
    }

    /// A sandbox is refused for what can be read without a mount; kubelet tries again with another.
    fn of_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let Scene { node, target, containerd, .. } = &scene;
        let info = node.entry(target).join("mountInfo.json");
        let cases: [(&str, &[&str]); 3] = [
            ("{", &["isn't JSON"]),
            ("{\"version\":2}", &["version"]),
            ("{\"volume-type\":\"block\",\"device\":\"/dev/null\",\"fstype\":\"ext4\"}", &["/dev/null", "ENOTBLK"]),
        ];
        for (attempt, (text, names)) in (0..).zip(cases) {
            with_text(&info, |_| text.to_owned(), || {
                let bundle = node.sandbox_bundle(POD).write();
                let sentence = refusal::create_refused(node, &bundle).naming_volume("pv-1").containing(names).message();
                let config = containerd.pod(POD).attempt(attempt);
                let error = containerd.cri().run_pod(&config, "crust").unwrap_err();
                assert_tells(&error.message, &sentence);
            });
        }
        assert_eq!(containerd.cri().pods().unwrap().len(), 0);
        let pod = CriPod::of(containerd, containerd.pod(POD).attempt(3));
        let _ = pod.app("one", target);
        scene.end(&pod);
    }
}
