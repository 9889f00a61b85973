//! Pods of a private containerd, created with the calls that kubelet makes.

use std::path::{Path, PathBuf};

use super::Containerd;
use crate::cri::Cri;
use crate::cri::runtime_v1::{ContainerConfig, PodSandboxConfig};
use crate::node::WAIT_TIMEOUT;
use crate::{CriError, Node, wait_until};

/// A pod with a running sandbox. It is removed with its containerd.
#[derive(Debug)]
pub struct CriPod<'a> {
    containerd: &'a Containerd,
    config: PodSandboxConfig,
    id: String,
}

impl<'a> CriPod<'a> {
    /// Runs a pod with this uid under the handler `crust`.
    #[track_caller]
    pub fn run(containerd: &'a Containerd, uid: &str) -> Self {
        Self::with_config(containerd, containerd.pod(uid))
    }

    /// Runs a pod with this config under the handler `crust`.
    #[track_caller]
    pub fn with_config(containerd: &'a Containerd, config: PodSandboxConfig) -> Self {
        Self::with_handler(containerd, config, "crust")
    }

    /// Runs a pod under another handler.
    #[track_caller]
    pub fn with_handler(
        containerd: &'a Containerd,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Self {
        let id = containerd.cri().run_pod(&config, handler);
        Self {
            id: id.expect("RunPodSandbox"),
            containerd,
            config,
        }
    }

    /// Returns the sandbox's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the pid of the sandbox's first process on the host.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.cri().pod_pid(&self.id).expect("PodSandboxStatus")
    }

    /// Returns the path of a container's log.
    pub fn log_of(&self, container: &ContainerConfig) -> PathBuf {
        Path::new(&self.config.log_directory).join(&container.log_path)
    }

    /// Returns the config of a container that sleeps and has `source` at `/data`.
    pub fn with(&self, name: &str, source: &Path) -> ContainerConfig {
        self.containerd.app(name).mount(source, "/data")
    }

    /// Starts a container that has `source` at `/data`, and returns its id.
    #[track_caller]
    pub fn app(&self, name: &str, source: &Path) -> String {
        self.start(&self.with(name, source))
    }

    /// Creates and starts a container, and returns its id.
    #[track_caller]
    pub fn start(&self, container: &ContainerConfig) -> String {
        let id = self.create(container);
        self.cri().start(&id).expect("StartContainer");
        id
    }

    /// Creates a container and returns its id. The OCI runtime is not called before the start.
    #[track_caller]
    pub fn create(&self, container: &ContainerConfig) -> String {
        let created = self.cri().create(&self.id, container, &self.config);
        created.expect("CreateContainer")
    }

    /// Tries to start a container, which must fail, removes it as kubelet does, and returns the error.
    #[track_caller]
    pub fn expect_refusal(&self, container: &ContainerConfig) -> CriError {
        let id = self.create(container);
        let error = self.cri().start(&id).expect_err("StartContainer must fail");
        self.cri().remove(&id).expect("RemoveContainer");
        error
    }

    /// Stops and removes the pod as kubelet does, and waits until its bundles are gone. containerd 1.7 and 2.1 remove
    /// the bundle of a killed sandbox a moment after `RemovePodSandbox`, and the sandbox's record stays as long as the
    /// bundle.
    #[track_caller]
    pub fn end(&self) {
        let containers = self.cri().containers(&self.id).expect("ListContainers");
        self.cri().stop_pod(&self.id).expect("StopPodSandbox");
        self.cri().remove_pod(&self.id).expect("RemovePodSandbox");
        let ids = containers.iter().map(|container| container.id.as_str());
        for id in ids.chain([self.id.as_str()]) {
            let bundle = self.containerd.bundle(id);
            wait_until("containerd to remove a bundle", WAIT_TIMEOUT, || {
                !bundle.exists()
            });
        }
    }

    /// Ends the node's last pod, unstages its volumes, and checks that nothing is left.
    #[track_caller]
    pub fn end_and_unstage(&self, node: &Node, volumes: &[&Path]) {
        self.end();
        node.unstage_all(volumes);
    }

    /// Returns the client of containerd's CRI.
    pub fn cri(&self) -> &'a Cri {
        self.containerd.cri()
    }
}
