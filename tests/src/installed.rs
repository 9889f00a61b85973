//! A pod on the e2e node, where runcrust and `crust_ops` are installed from their packages with default settings, and
//! containerd is configured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tonic::Status;

use crate::cleanup::Cleanup;
use crate::containerd::{import_archive, import_images};
use crate::cri::runtime_v1::{ContainerConfig, PodSandboxConfig};
use crate::dir::unique;
use crate::node::{WAIT_TIMEOUT, utf8};
use crate::ops::{Clients, stage_request_of};
use crate::{APP_IMAGE, Cri, Delegate, Disk, Run, TestDir, cgroup, wait_until};

/// containerd's default socket.
const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// The daemon's socket for `crust.v1.Runtime`.
pub const CRUST_OPS: &str = "/run/crust_ops/crust_ops.sock";
/// The daemon's socket for the CRUST interface.
pub const CRUST: &str = "/run/runcrust/crust.sock";
const KUBELET: &str = "/var/lib/kubelet";

/// A pod that can be run. On drop it and its volume are removed.
#[derive(Debug)]
pub struct InstalledPod {
    cri: Cri,
    ops: Clients,
    delegate: Delegate,
    uid: String,
    target: PathBuf,
    _cleanup: Cleanup,
    dir: TestDir,
}

impl InstalledPod {
    /// Prepares a pod for the handler with this delegate.
    #[track_caller]
    pub fn new(delegate: Delegate) -> Self {
        let dir = TestDir::new();
        let cri = Cri::new(Path::new(CONTAINERD));
        wait_until("containerd's CRI", WAIT_TIMEOUT, || cri.is_ready());
        let are_imported = import_images(Path::new(CONTAINERD), &cri, &dir.join("images.tar"));
        assert!(are_imported, "the CRI doesn't see the imported images");
        let uid = unique("pod");
        let directory = Path::new(KUBELET).join("pods").join(&uid);
        let target = directory.join("volumes/kubernetes.io~csi/pv-1/mount");
        fs::create_dir_all(&target).expect("mkdir of a target path");
        let (owned, volume) = (uid.clone(), target.clone());
        Self {
            delegate,
            cri,
            ops: Clients::new(Path::new(CRUST_OPS), Path::new(CRUST)),
            uid,
            target,
            _cleanup: Cleanup::register(move || remove(&owned, &volume, &directory)),
            dir,
        }
    }

    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    pub fn ops(&self) -> &Clients {
        &self.ops
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Imports an image from an archive into containerd.
    #[track_caller]
    pub fn import(&self, archive: &Path, image: &str) {
        let is_imported = import_archive(Path::new(CONTAINERD), &self.cri, archive, &[image]);
        assert!(is_imported, "the CRI doesn't see {image}");
    }

    /// Stages the disk through the daemon.
    pub fn stage(&self, disk: &Disk) -> Result<(), Status> {
        self.ops
            .stage(stage_request_of(&self.target, disk.path(), "ext4"))
    }

    /// Runs the sandbox and returns its id.
    #[track_caller]
    pub fn run(&self) -> String {
        let handler = match self.delegate {
            Delegate::Runc => "crust",
            Delegate::Crun => "crust-crun",
        };
        let run = self.cri.run_pod(&self.config(), handler);
        run.unwrap_or_else(|error| panic!("RunPodSandbox: {error}"))
    }

    /// Runs an app that has the volume at `/data`, and returns its id.
    #[track_caller]
    pub fn app(&self, sandbox: &str, name: &str) -> String {
        let app = ContainerConfig::new(name, APP_IMAGE).mount(&self.target, "/data");
        let run = self.cri.run(sandbox, &app, &self.config());
        run.unwrap_or_else(|error| panic!("app {name}: {error}"))
    }

    /// Stops and removes the sandbox with its containers.
    #[track_caller]
    pub fn end(&self, sandbox: &str) {
        let ended = self.cri.stop_pod(sandbox);
        let ended = ended.and_then(|()| self.cri.remove_pod(sandbox));
        ended.unwrap_or_else(|error| panic!("pod {sandbox}: {error}"));
    }

    /// Returns the path of a container's control group, relative to the cgroup mount.
    pub fn scope(&self, container: &str) -> String {
        let pods = format!("/kubepods.slice/{}", slice(&self.uid));
        let scope = format!("{pods}/cri-containerd-{container}.scope");
        cgroup::container_group(&scope, self.delegate)
    }

    /// Returns the config that kubelet makes with the systemd cgroup driver.
    fn config(&self) -> PodSandboxConfig {
        let parent = format!("/kubepods.slice/{}", slice(&self.uid));
        PodSandboxConfig::new(&self.uid, &self.uid, &parent, &self.dir.join("logs"))
    }
}

fn slice(uid: &str) -> String {
    // In a slice's name a dash separates levels.
    format!("kubepods-pod{}.slice", uid.replace('-', "_"))
}

/// Runs `systemctl`, which must succeed, and returns its trimmed output.
#[track_caller]
pub fn systemctl(arguments: &[&str]) -> String {
    let run = Run::capture(Command::new("systemctl").args(arguments)).success();
    run.stdout.trim().to_owned()
}

/// Returns a property of a unit.
#[track_caller]
pub fn property(unit: &str, name: &str) -> String {
    systemctl(&["show", "--property", name, "--value", unit])
}

fn remove(uid: &str, target: &Path, directory: &Path) -> Vec<String> {
    let cri = Cri::new(Path::new(CONTAINERD));
    let mut errors = Vec::new();
    match cri.pods() {
        Err(error) => errors.push(format!("ListPodSandbox: {error}")),
        Ok(pods) => {
            let is_ours = |of: &str| of == uid;
            for pod in pods {
                if is_ours(&pod.metadata.unwrap_or_default().uid) {
                    let result = cri.stop_pod(&pod.id).and_then(|()| cri.remove_pod(&pod.id));
                    errors.extend(result.err().map(|error| format!("pod {uid}: {error}")));
                }
            }
        }
    }
    let unstage = Run::capture(Command::new("runcrust").args(["crust", "unstage", utf8(target)]));
    if !unstage.status.success() {
        errors.push(unstage.to_string());
    }
    errors.extend(cgroup::remove_parent(&format!(
        "/kubepods.slice/{}",
        slice(uid)
    )));
    if let Err(error) = fs::remove_dir_all(directory) {
        errors.push(format!("{}: {error}", directory.display()));
    }
    errors
}
