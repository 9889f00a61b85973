//! The `DaemonSet`'s `crust_ops`, with its `ConfigMap` as a kubelet mounts it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::kubernetes::manifests;
use runcrust_tests::{TestDir, binary, wait_until};

use crate::files::{containers, kustomization, pod, read};

const PATIENCE: Duration = Duration::from_secs(30);

/// The volume's directory: everybody's to write, with a link for each key into the one that has the present content
/// (kubelet's `pkg/volume/util/atomic_writer.go`, and `SetupDir` of `emptyDir`, which a `ConfigMap` is in).
fn volume(dir: &TestDir, files: &[PathBuf]) -> PathBuf {
    let volume = dir.subdir("config-map");
    let present = "..2026_11_26_19_02_33.1234567890";
    fs::create_dir(volume.join(present)).unwrap();
    chmod(&volume.join(present), 0o755);
    for file in files {
        let content = fs::read(manifests().join("base").join(file)).unwrap();
        fs::write(volume.join(present).join(file), content).unwrap();
        chmod(&volume.join(present).join(file), 0o644);
        symlink(Path::new("..data").join(file), volume.join(file)).unwrap();
    }
    symlink(present, volume.join("..data")).unwrap();
    chmod(&volume, 0o777);
    volume
}

fn chmod(path: &Path, mode: u32) {
    let permissions = Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).unwrap();
}

#[test]
fn crust_ops_starts_with_its_config_map() {
    let set: DaemonSet = read("base/daemonset.yaml");
    let [map] = kustomization("base/")
        .config_map_generator
        .try_into()
        .unwrap();
    let dir = TestDir::guarded();
    let volume = volume(&dir, &map.files);
    let crust_ops = containers(&set)
        .into_iter()
        .find(|it| it.name == "crust-ops");
    let crust_ops = crust_ops.unwrap();

    // A root file system of its own, as far as it counts: what is below /etc and /run is the container's.
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
            // kubelet binds what the link leads to.
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
    wait_until("crust_ops to listen", PATIENCE, || {
        let text = fs::read_to_string(&log).unwrap();
        assert!(!text.contains("crust_ops: "), "{text}");
        UnixStream::connect(&socket).is_ok()
    });
}
