//! The CRI calls that kubelet makes for a pod's spec.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, PodSpec, VolumeMount};

use crate::cri::runtime_v1::{
    ContainerConfig, ContainerState, LinuxSandboxSecurityContext, MountPropagation, NamespaceMode,
    PodSandboxConfig,
};
use crate::node::WAIT_TIMEOUT;
use crate::{Cri, CriError, wait};

/// The part of kubelet that this repository's manifests need: host paths and config maps.
#[derive(Debug)]
pub struct Kubelet<'a> {
    cri: &'a Cri,
    directory: PathBuf,
    config_maps: BTreeMap<String, BTreeMap<String, String>>,
}

/// A pod whose init containers have ended and whose containers are running.
#[derive(Debug)]
pub struct RunningPod {
    /// The id of the sandbox.
    pub sandbox: String,
    /// The ids of the containers by their names.
    pub containers: BTreeMap<String, String>,
}

impl<'a> Kubelet<'a> {
    /// Makes a kubelet that keeps config maps and logs in a directory.
    pub fn new(cri: &'a Cri, directory: PathBuf) -> Self {
        Self {
            cri,
            directory,
            config_maps: BTreeMap::new(),
        }
    }

    /// Adds a config map with these files by name.
    #[must_use]
    pub fn config_map(mut self, name: &str, files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|&(name, text)| (name.to_owned(), text.to_owned()));
        self.config_maps.insert(name.to_owned(), files.collect());
        self
    }

    /// Runs a pod with the node's default runtime. Panics with the log if an init container fails, and on spec fields
    /// that are not supported here.
    pub fn run(&self, name: &str, spec: &PodSpec) -> Result<RunningPod, CriError> {
        let pod = self.sandbox_config(name, spec);
        self.wait_for_runtime();
        let sandbox = self.cri.run_pod(&pod, "")?;
        for container in spec.init_containers.iter().flatten() {
            let id = self
                .cri
                .run(&sandbox, &self.container(spec, container), &pod)?;
            self.wait_for_success(&id, &pod, &container.name);
            self.wait_for_runtime();
        }
        let mut containers = BTreeMap::new();
        for container in &spec.containers {
            let id = self
                .cri
                .run(&sandbox, &self.container(spec, container), &pod)?;
            containers.insert(container.name.clone(), id);
        }
        Ok(RunningPod {
            sandbox,
            containers,
        })
    }

    /// Runs a container of the pod again, as kubelet does after it has ended, and returns the new id.
    pub fn restart_container(
        &self,
        pod: &RunningPod,
        name: &str,
        spec: &PodSpec,
        container: &str,
    ) -> Result<String, CriError> {
        let mut containers = spec.containers.iter();
        let found = containers.find(|it| it.name == container);
        let found = found.unwrap_or_else(|| panic!("the spec has no container {container}"));
        self.wait_for_runtime();
        let mut config = self.container(spec, found);
        config.metadata.get_or_insert_default().attempt = 1;
        self.cri
            .run(&pod.sandbox, &config, &self.sandbox_config(name, spec))
    }

    pub fn remove(&self, pod: &RunningPod) -> Result<(), CriError> {
        self.cri.stop_pod(&pod.sandbox)?;
        self.cri.remove_pod(&pod.sandbox)
    }

    /// Returns a container's log.
    pub fn log(&self, pod: &str, container: &str) -> String {
        let path = self
            .directory
            .join("logs")
            .join(pod)
            .join(format!("{container}.log"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Waits for the CRI, because a node's runtime is restarted when it is configured.
    fn wait_for_runtime(&self) {
        wait::wait_until("the CRI to answer", WAIT_TIMEOUT, || self.cri.is_ready());
    }

    fn wait_for_success(&self, id: &str, pod: &PodSandboxConfig, name: &str) {
        let mut exit_code = 0;
        // Errors are ignored, because the CRI does not answer while the runtime is restarted.
        wait::wait_until("an init container to end", WAIT_TIMEOUT, || {
            let status = self.cri.status(id);
            status.is_ok_and(|status| {
                exit_code = status.exit_code;
                status.state() == ContainerState::ContainerExited
            })
        });
        let pod = pod
            .metadata
            .as_ref()
            .map(|metadata| metadata.name.as_str())
            .unwrap_or_default();
        assert_eq!(exit_code, 0, "{name}: {}", self.log(pod, name));
    }

    fn sandbox_config(&self, name: &str, spec: &PodSpec) -> PodSandboxConfig {
        let uid = format!("{name}-uid");
        let mut pod =
            PodSandboxConfig::new(name, &uid, "", &self.directory.join("logs").join(name));
        let security = pod
            .linux
            .get_or_insert_default()
            .security_context
            .get_or_insert_with(LinuxSandboxSecurityContext::default);
        security.privileged = spec.containers.iter().any(is_privileged);
        security.namespace_options.get_or_insert_default().pid = pid_namespace(spec).into();
        pod
    }

    fn container(&self, spec: &PodSpec, container: &Container) -> ContainerConfig {
        let image = container.image.as_deref().expect("an image");
        let mut config = ContainerConfig::new(&container.name, image);
        config.command = container.command.clone().unwrap_or_default();
        config.args = container.args.clone().unwrap_or_default();
        for mount in container.volume_mounts.iter().flatten() {
            let host = self.host_path(spec, mount);
            let readonly = mount.read_only.unwrap_or_default();
            config = config.mount_as(host, &mount.mount_path, readonly, propagation(mount));
        }
        let security = config.security();
        security.privileged = is_privileged(container);
        security.namespace_options.get_or_insert_default().pid = pid_namespace(spec).into();
        config
    }

    fn host_path(&self, spec: &PodSpec, mount: &VolumeMount) -> PathBuf {
        let mut volumes = spec.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name);
        let volume = volume.unwrap_or_else(|| panic!("the spec has no volume {}", mount.name));
        if let Some(host) = &volume.host_path {
            assert_eq!(mount.sub_path, None, "{mount:?}");
            if host.type_.as_deref() == Some("DirectoryOrCreate") {
                fs::create_dir_all(&host.path).expect("a host path");
            }
            return host.path.clone().into();
        }
        let name = volume.config_map.as_ref().map(|map| map.name.as_str());
        let name = name.unwrap_or_else(|| panic!("unsupported volume type: {volume:?}"));
        let directory = self.directory.join("config-maps").join(name);
        let files = self.config_maps.get(name);
        let files = files.unwrap_or_else(|| panic!("unknown config map {name}"));
        super::write_config_map(&directory, files);
        match &mount.sub_path {
            // kubelet resolves the links before it calls the runtime.
            Some(file) => directory.join(file).canonicalize().expect("a key"),
            None => directory,
        }
    }
}

fn is_privileged(container: &Container) -> bool {
    let security = container.security_context.as_ref();
    security
        .and_then(|security| security.privileged)
        .unwrap_or_default()
}

fn pid_namespace(spec: &PodSpec) -> NamespaceMode {
    if spec.host_pid.unwrap_or_default() {
        NamespaceMode::Node
    } else {
        NamespaceMode::Container
    }
}

fn propagation(mount: &VolumeMount) -> MountPropagation {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => MountPropagation::PropagationPrivate,
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        Some(other) => panic!("mountPropagation {other}"),
    }
}
