//! `crust_ops` of the `DaemonSet`, with its `ConfigMap` mounted in the way of kubelet.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::kubernetes::{manifests, write_config_map};
use runcrust_tests::{TestDir, binary, wait_until};

use crate::files::{containers, kustomization, pod, read};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes the volume of the base's `ConfigMap`, with the files that kustomize puts into it.
fn volume(dir: &TestDir) -> PathBuf {
    let [map] = kustomization("base/")
        .config_map_generator
        .try_into()
        .unwrap();
    let files = map.files.iter().map(|file| {
        let text = fs::read_to_string(manifests().join("base").join(file)).unwrap();
        (file.to_str().unwrap().to_owned(), text)
    });
    let volume = dir.subdir("config-map");
    write_config_map(&volume, &files.collect());
    volume
}

#[test]
fn crust_ops_starts_with_its_config_map() {
    let set: DaemonSet = read("base/daemonset.yaml");
    let dir = TestDir::root_only();
    let volume = volume(&dir);
    let crust_ops = containers(&set)
        .into_iter()
        .find(|it| it.name == "crust-ops");
    let crust_ops = crust_ops.unwrap();

    // Replace /etc and /run, which belong to the container. The rest of the root file system doesn't matter.
    let mut script = String::from(
        "mount -t tmpfs -o mode=755 none /etc\nmount -t tmpfs -o mode=755 none /run\n",
    );
    let is_map = |name: &str| {
        let mut volumes = pod(&set).volumes.iter().flatten();
        volumes.any(|volume| volume.name == name && volume.config_map.is_some())
    };
    let mounts = crust_ops.volume_mounts.iter().flatten();
    for mount in mounts.filter(|mount| is_map(&mount.name)) {
        let (from, to) = (volume.display(), Path::new(&mount.mount_path));
        let parent = to.parent().unwrap().display();
        let line = match &mount.sub_path {
            // kubelet binds the target of the link.
            Some(sub) => format!(
                "mkdir -p {parent}\n: > {0}\nmount --bind {from}/{sub} {0}\n",
                to.display()
            ),
            None => format!("mkdir -p {0}\nmount --bind {from} {0}\n", to.display()),
        };
        script.push_str(&line);
    }
    let [_, arguments @ ..] = &crust_ops.command.unwrap()[..] else {
        panic!("no command");
    };
    assert!(
        arguments.iter().any(|it| it.starts_with("--config=")),
        "{arguments:?}"
    );
    let log = dir.join("log");
    let child = Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-ec"])
        .arg(format!("{script}exec \"$@\""))
        .arg("sh")
        .arg(binary("crust_ops"))
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn();
    let mut child = child.unwrap();
    let socket = format!("/proc/{}/root/run/crust_ops/crust_ops.sock", child.id());
    let _ended = Cleanup::register(move || {
        let _ = child.kill();
        let _ = child.wait();
        Vec::new()
    });
    wait_until("crust_ops to listen", START_TIMEOUT, || {
        let text = fs::read_to_string(&log).unwrap();
        assert!(!text.contains("crust_ops: "), "{text}");
        UnixStream::connect(&socket).is_ok()
    });
}
