//! Errors about a volume reach the CRI's client complete, and the pod works once the cause is removed.

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

/// Asserts that the message contains the whole sentence once. containerd's text around it differs between versions, and
/// must not repeat parts of the sentence.
#[track_caller]
fn assert_contains_once(message: &str, sentence: &str) {
    let around: Vec<&str> = message.split(sentence).collect();
    let [before, after] = around[..] else {
        panic!("not exactly one {sentence:?} in: {message}");
    };
    let has_our_text = |text: &str| {
        ["pv-1", "crust", "hint: "]
            .iter()
            .any(|word| text.contains(word))
    };
    assert!(!has_our_text(before) && !has_our_text(after), "{message}");
}

/// Returns the error of a create by the command line with the same mount in the same pod.
fn error_on_command_line(node: &Node, pod: &CriPod<'_>, source: &Path) -> String {
    let bundle = Bundle::plain(node.dir())
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotation("io.kubernetes.cri.sandbox-id", pod.id());
    let bundle = bundle.bind(source, "/data", &[]).write();
    refusal::create_refused(node, &bundle)
        .naming_volume("pv-1")
        .message()
}

/// Asserts that a container of a running pod cannot be started, and that the call's error and the container's status
/// contain the error of the command line.
#[track_caller]
fn assert_refused(node: &Node, pod: &CriPod<'_>, container: &ContainerConfig, names: &[&str]) {
    let source = PathBuf::from(&container.mounts[0].host_path);
    let sentence = error_on_command_line(node, pod, &source);
    assert_contains(&sentence, names);
    let id = pod.create(container);
    let error = pod.cri().start(&id).expect_err("the start is refused");
    assert_contains_once(&error.message, &sentence);
    let status = pod.cri().status(&id).unwrap();
    let state = (status.state(), status.exit_code, status.reason.as_str());
    assert_eq!(state, (ContainerState::ContainerExited, 128, "StartError"));
    assert_eq!(status.message, error.message);
    pod.cri().remove(&id).unwrap();
}

/// Runs `work` while a text file is changed.
fn with_text<T>(file: &Path, change: impl FnOnce(&str) -> String, work: impl FnOnce() -> T) -> T {
    let good = fs::read_to_string(file).unwrap();
    fs::write(file, change(&good)).unwrap();
    let result = work();
    fs::write(file, good).unwrap();
    result
}

/// Runs `check` with a running pod whose volume was staged after the sandbox's start, so it is not mounted yet. Then
/// asserts that a container works.
fn with_volume_staged_later(
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
    fn an_invalid_entry_is_reported(delegate: Delegate) {
        with_volume_staged_later(delegate, Node::ext4, |node, pod, target, device| {
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

    fn a_device_in_use_is_reported(delegate: Delegate) {
        with_volume_staged_later(delegate, Node::ext4, |node, pod, target, device| {
            with_mounted(device.path(), |_| {
                let app = pod.with("one", target);
                assert_refused(node, pod, &app, &["in use by a user that runcrust has no record of", utf8(device.path())]);
            });
        });
    }

    fn a_device_without_a_file_system_is_reported(delegate: Delegate) {
        let blank = |node: &Node| LoopDevice::new(node.dir(), 32);
        with_volume_staged_later(delegate, blank, |node, pod, target, device| {
            let app = pod.with("one", target);
            assert_refused(node, pod, &app, &["no file system", "runcrust never does"]);
            runcrust_tests::volume::mkfs("ext4", device.path(), &[]);
        });
    }

    fn subpaths_that_lead_out_are_reported(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            symlink("/etc", root.join("outside")).unwrap();
            symlink("../../../../etc", root.join("upwards")).unwrap();
            fs::write(root.join("file"), "").unwrap();
        });
        let volume = StagedVolume::on_device(node, device, &[]);
        let containerd = containerd(&volume);
        let pod = CriPod::run(&containerd, POD);
        for (attempt, path) in (0..).zip(["outside", "upwards/x", "file/below"]) {
            let app = pod.with("one", &volume.target.join(path)).attempt(attempt);
            assert_refused(&volume, &pod, &app, &[path]);
        }
        let _ = pod.app("two", &volume.target.join("inside"));
        pod.end_and_unstage(&volume, &[&volume.target]);
    }

    fn a_conflict_with_another_pod_is_reported(delegate: Delegate) {
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
            let other = CriPod::with_config(&containerd, containerd.pod(OTHER_POD).attempt(attempt));
            let holder = other.app("holder", &theirs);
            let mine = node.stage(POD, "pv-1", &device, &[]);
            let pod = CriPod::with_config(&containerd, containerd.pod(POD).attempt(attempt));
            let app = pod.with("one", &mine);
            assert_refused(&node, &pod, &app, &[&[other.id(), OTHER_POD], names].concat());
            let _ = pod.cri().sh(&holder, "echo on > /data/file");
            other.end();
            let one = pod.start(&app.attempt(1));
            assert_eq!(pod.cri().sh(&one, "cat /data/file"), "on");
            pod.end_and_unstage(&node, &[&theirs, &mine]);
        }
    }

    fn another_pods_volume_is_reported(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "sandbox = \"always\""), &[]);
        let containerd = containerd(&volume);
        let pod = CriPod::run(&containerd, OTHER_POD);
        let thief = pod.with("thief", &volume.target);
        assert_refused(&volume, &pod, &thief, &["its target path belongs to pod", POD, OTHER_POD]);
        assert!(volume.device.is_free());
        pod.end_and_unstage(&volume, &[&volume.target]);
    }

    /// A container must not get the host's directory instead.
    fn a_lost_or_half_staged_entry_is_reported(delegate: Delegate) {
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

    /// Running containers are not affected, and the next sandbox works.
    fn a_lost_record_of_a_sandbox_is_reported(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let pod = scene.pod();
        let one = pod.app("one", &scene.target);
        fs::remove_dir_all(scene.node.handler().state_dir()).unwrap();
        let two = pod.with("two", &scene.target);
        assert_refused(&scene.node, &pod, &two, &["there is no record of", pod.id()]);
        let _ = scene.cri().sh(&one, "echo kept > /data/file");
        pod.end();
        scene.device.wait_until_free(WAIT_TIMEOUT);
        let pod = CriPod::with_config(&scene.containerd, scene.containerd.pod(POD).attempt(1));
        let one = pod.app("one", &scene.target);
        assert_eq!(scene.cri().sh(&one, "cat /data/file"), "kept");
        scene.end(&pod);
    }

    /// A sandbox is refused for errors that are found without a mount. kubelet retries with another sandbox.
    fn an_invalid_entry_fails_the_sandbox(delegate: Delegate) {
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
                assert_contains_once(&error.message, &sentence);
            });
        }
        assert_eq!(containerd.cri().pods().unwrap().len(), 0);
        let pod = CriPod::with_config(containerd, containerd.pod(POD).attempt(3));
        let _ = pod.app("one", target);
        scene.end(&pod);
    }
}
