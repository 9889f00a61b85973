//! `uninstall all`, which packages run before the programs are removed.

use std::fs;
use std::process::{Command, Stdio};

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, Pod, binary, wait_until};

use crate::scene::{Scene, run, tree};

const UID: &str = "eeeeeeee-1111-2222-3333-555555555555";

#[test]
fn uninstall_all_removes_every_runcrust_handler_only() {
    let scene = Scene::new();
    let program = "#!/bin/sh\n";
    scene.write("usr/local/bin/runcrust-crun", program, 0o755);
    let containerd = "version = 2\n\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\n\
        runtime_type = \"io.containerd.runc.v2\"\n\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other.options]\n\
        BinaryName = \"/usr/bin/crun\"\n";
    scene.write("etc/containerd/config.toml", containerd, 0o644);
    let docker = "{\"runtimes\": {\"other\": {\"path\": \"/usr/bin/crun\"}}}\n";
    scene.write("etc/docker/daemon.json", docker, 0o644);
    for directory in ["etc/crio/crio.conf.d", "etc/containers/containers.conf.d"] {
        fs::create_dir_all(scene.at(directory)).unwrap();
    }
    let before = tree(&scene.root());
    for engine in ["containerd", "crio", "podman", "docker"] {
        let _ = scene.installed(&format!("install {engine}")).success();
        let second = "--handler crust-crun --program /usr/local/bin/runcrust-crun";
        let _ = scene.call(&format!("install {engine} {second}")).success();
    }
    let installed = tree(&scene.root());
    let preview = scene.call("uninstall all --dry-run").success();
    assert_eq!(preview.stdout.matches("\n@@").count(), 8, "{preview}");
    assert_eq!(tree(&scene.root()), installed, "the dry run changed files");
    let _ = scene.call("uninstall all").success();
    assert_eq!(tree(&scene.root()), before);
    let second = scene.call("uninstall all").success();
    assert_eq!(second.stdout, "nothing to remove\n");
}

#[test]
fn a_volume_in_use_by_any_configuration_stops_uninstall() {
    let node = Node::root_only(Delegate::Runc, "");
    let device = node.ext4();
    let pod = Pod::new(&node, UID, &device, &[]);
    let root = node.dir().path();
    // Paths relative to the node's root. No handler uses this configuration.
    fs::create_dir_all(root.join("etc/runcrust")).unwrap();
    let below = |path: &std::path::Path| {
        let path = path.strip_prefix(root).unwrap();
        format!("/{}", path.display())
    };
    let (crust, state) = (node.handler().crust_root(), node.handler().state_dir());
    let text = format!(
        "crust_root = {:?}\nstate_dir = {:?}\n",
        below(&crust),
        below(&state)
    );
    fs::write(root.join("etc/runcrust/another.toml"), text).unwrap();
    let words = ["uninstall", "all", "--dry-run", "--root", utf8(root)];
    let refused = run(&binary("runcrust"), &words).failure();
    assert!(
        refused.stderr.contains("runcrust is not uninstalled")
            && refused.stderr.contains("volume pv-1"),
        "{refused}"
    );
    pod.end([]);
    // The configuration of crust_ops is not a runtime's.
    fs::write(
        root.join("etc/runcrust/crust_ops.toml"),
        "listen = \"/x\"\n",
    )
    .unwrap();
    let preview = run(&binary("runcrust"), &words).success();
    assert_eq!(preview.stdout, "nothing to remove\n");
    fs::write(root.join("etc/runcrust/broken.toml"), "no_such_key = 1\n").unwrap();
    let refused = run(&binary("runcrust"), &words).failure();
    assert!(refused.stderr.contains("broken.toml"), "{refused}");
}

#[test]
fn with_stay_the_program_keeps_running_afterwards() {
    let scene = Scene::new();
    let _ = scene.installed("install containerd").success();
    let root = scene.root();
    let mut child = Command::new(binary("runcrust"))
        .args([
            "uninstall",
            "containerd",
            "--stay",
            "--copy-to=/usr/local/bin",
        ])
        .args(["--systemd-cgroup=true", "--root", utf8(&root)])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let wait_channel = format!("/proc/{}/wchan", child.id());
    wait_until("it to sleep", WAIT_TIMEOUT, || {
        fs::read_to_string(&wait_channel).is_ok_and(|it| it.contains("futex"))
    });
    assert!(!scene.at("etc/containerd/config.toml").exists());
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
}
