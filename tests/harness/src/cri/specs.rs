//! Short constructors for the requests that tests make most. All fields remain accessible.

use std::path::Path;

use super::runtime_v1::{
    Capability, ContainerConfig, ContainerMetadata, IdMapping, ImageSpec, Int64Value,
    LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, MountPropagation, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};

/// Returns the namespaces of a pod with `hostNetwork`, which needs no CNI: each container has its own pid namespace.
fn namespaces() -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: NamespaceMode::Container.into(),
        ipc: NamespaceMode::Pod.into(),
        ..NamespaceOption::default()
    }
}

impl PodSandboxConfig {
    /// Makes the config of a pod in the node's network.
    pub fn new(name: &str, uid: &str, cgroup_parent: &str, log_directory: &Path) -> Self {
        Self {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: log_directory.display().to_string(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: cgroup_parent.to_owned(),
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces()),
                    ..LinuxSandboxSecurityContext::default()
                }),
                ..LinuxPodSandboxConfig::default()
            }),
            ..Self::default()
        }
    }

    /// Sets the attempt, which kubelet increments for a new sandbox because the runtime needs a new name.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.metadata.get_or_insert_default().attempt = attempt;
        self
    }

    /// Changes the namespaces.
    #[must_use]
    pub fn namespaces(mut self, change: impl FnOnce(&mut NamespaceOption)) -> Self {
        change(self.security().namespace_options.get_or_insert_default());
        self
    }

    /// Returns the security context for changes that have no method here.
    pub fn security(&mut self) -> &mut LinuxSandboxSecurityContext {
        self.linux
            .get_or_insert_default()
            .security_context
            .get_or_insert_default()
    }

    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }
}

impl ContainerConfig {
    /// Makes the config of a container that runs the image's program.
    pub fn new(name: &str, image: &str) -> Self {
        Self {
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: image.to_owned(),
                ..ImageSpec::default()
            }),
            log_path: format!("{name}.log"),
            linux: Some(LinuxContainerConfig {
                resources: Some(LinuxContainerResources::default()),
                security_context: Some(LinuxContainerSecurityContext {
                    namespace_options: Some(namespaces()),
                    ..LinuxContainerSecurityContext::default()
                }),
            }),
            ..Self::default()
        }
    }

    /// Sets the attempt, which kubelet increments for a restart because the runtime needs a new name.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.metadata.get_or_insert_default().attempt = attempt;
        self
    }

    /// Mounts a path of the host read-write.
    #[must_use]
    pub fn mount(self, host: impl AsRef<Path>, container: &str) -> Self {
        self.mount_as(host, container, false, MountPropagation::PropagationPrivate)
    }

    /// Mounts a path of the host read-only.
    #[must_use]
    pub fn mount_readonly(self, host: impl AsRef<Path>, container: &str) -> Self {
        self.mount_as(host, container, true, MountPropagation::PropagationPrivate)
    }

    /// Mounts a path of the host.
    #[must_use]
    pub fn mount_as(
        mut self,
        host: impl AsRef<Path>,
        container: &str,
        readonly: bool,
        propagation: MountPropagation,
    ) -> Self {
        self.mounts.push(Mount {
            container_path: container.to_owned(),
            host_path: host.as_ref().display().to_string(),
            readonly,
            propagation: propagation.into(),
            ..Mount::default()
        });
        self
    }

    /// Maps the ids of all mounts, as kubelet does for a pod with a user namespace.
    #[must_use]
    pub fn map_mounts(mut self, mappings: &[IdMapping]) -> Self {
        for mount in &mut self.mounts {
            mount.uid_mappings = mappings.to_vec();
            mount.gid_mappings = mappings.to_vec();
        }
        self
    }

    /// Sets a command instead of the image's program.
    #[must_use]
    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets a shell script as the command.
    #[must_use]
    pub fn script(self, script: &str) -> Self {
        self.command(&["/bin/sh", "-ec", script])
    }

    /// Changes the namespaces.
    #[must_use]
    pub fn namespaces(mut self, change: impl FnOnce(&mut NamespaceOption)) -> Self {
        change(self.security().namespace_options.get_or_insert_default());
        self
    }

    #[must_use]
    pub fn readonly_rootfs(mut self) -> Self {
        self.security().readonly_rootfs = true;
        self
    }

    /// Adds a capability, which is named without `CAP_`.
    #[must_use]
    pub fn capability(mut self, name: &str) -> Self {
        let capabilities: &mut Capability = self.security().capabilities.get_or_insert_default();
        capabilities.add_capabilities.push(name.to_owned());
        self
    }

    /// Sets the user and its supplementary groups.
    #[must_use]
    pub fn user(mut self, uid: i64, groups: &[i64]) -> Self {
        self.security().run_as_user = Some(Int64Value { value: uid });
        self.security().supplemental_groups = groups.to_vec();
        self
    }

    /// Returns the security context for changes that have no method here.
    pub fn security(&mut self) -> &mut LinuxContainerSecurityContext {
        self.linux
            .get_or_insert_default()
            .security_context
            .get_or_insert_default()
    }
}
