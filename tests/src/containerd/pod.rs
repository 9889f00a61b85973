//! A pod in it, by the calls that kubelet makes.

use std::path::{Path, PathBuf};

use super::Containerd;
use crate::cri::Cri;
use crate::cri::runtime_v1::{ContainerConfig, PodSandboxConfig};
use crate::node::WAIT_TIMEOUT;
use crate::{CriError, Node, wait_until};

/// A pod whose sandbox runs. It goes with its containerd.
#[derive(Debug)]
pub struct CriPod<'a> {
    containerd: &'a Containerd,
    config: PodSandboxConfig,
    id: String,
}

impl<'a> CriPod<'a> {
    /// Runs one with this uid, and the handler `crust`.
    ///
    /// # Panics
    ///
    /// When its sandbox doesn't come to be.
    #[track_caller]
    pub fn run(containerd: &'a Containerd, uid: &str) -> Self {
        Self::of(containerd, containerd.pod(uid))
    }

    /// Runs another one, with the handler `crust`.
    ///
    /// # Panics
    ///
    /// As [`Self::run`].
    #[track_caller]
    pub fn of(containerd: &'a Containerd, config: PodSandboxConfig) -> Self {
        Self::with_handler(containerd, config, "crust")
    }

    /// Runs one with another handler.
    ///
    /// # Panics
    ///
    /// As [`Self::run`].
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

    /// Its sandbox's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its sandbox's first process, on the host.
    ///
    /// # Panics
    ///
    /// When it has none.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.cri().pod_pid(&self.id).expect("PodSandboxStatus")
    }

    /// A container's log.
    pub fn log_of(&self, container: &ContainerConfig) -> PathBuf {
        Path::new(&self.config.log_directory).join(&container.log_path)
    }

    /// A container that sleeps, with `source` at `/data`.
    pub fn with(&self, name: &str, source: &Path) -> ContainerConfig {
        self.containerd.app(name).mount(source, "/data")
    }

    /// The same, running; its id.
    #[track_caller]
    pub fn app(&self, name: &str, source: &Path) -> String {
        self.start(&self.with(name, source))
    }

    /// Creates a container and starts it; its id.
    ///
    /// # Panics
    ///
    /// When it can't be.
    #[track_caller]
    pub fn start(&self, container: &ContainerConfig) -> String {
        let id = self.create(container);
        self.cri().start(&id).expect("StartContainer");
        id
    }

    /// Creates a container, which the runtime hears nothing of before it is started; its id.
    ///
    /// # Panics
    ///
    /// When it can't be.
    #[track_caller]
    pub fn create(&self, container: &ContainerConfig) -> String {
        let created = self.cri().create(&self.id, container, &self.config);
        created.expect("CreateContainer")
    }

    /// A container that can't be started, removed again as kubelet does: the error that kubelet has.
    ///
    /// # Panics
    ///
    /// When it can be started.
    #[track_caller]
    pub fn expect_refusal(&self, container: &ContainerConfig) -> CriError {
        let id = self.create(container);
        let error = self.cri().start(&id).expect_err("it is refused");
        self.cri().remove(&id).expect("RemoveContainer");
        error
    }

    /// Ends it as kubelet does, and waits until its bundles are gone: containerd 1.7 and 2.1 remove the bundle of a
    /// sandbox that was killed a moment after `RemovePodSandbox`, and its record stays as long as it.
    ///
    /// # Panics
    ///
    /// When it can't be.
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

    /// Ends it, which was the node's last, and unstages its volumes: nothing is left.
    ///
    /// # Panics
    ///
    /// When something is.
    #[track_caller]
    pub fn end_with(&self, node: &Node, volumes: &[&Path]) {
        self.end();
        node.unstage_all(volumes);
    }

    /// The calls.
    pub fn cri(&self) -> &'a Cri {
        self.containerd.cri()
    }
}
