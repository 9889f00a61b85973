//! The CRI configurations of a pod's sandbox and containers. They are those that kubelet would send.

mod container;
mod env;
pub(crate) mod resources;
mod sandbox;
mod security;
mod unsupported;

use std::path::{Path, PathBuf};

use crate::objects::{Name, Objects, Pod};
use crate::settings::Settings;

pub(crate) use container::{NewContainer, container, subpath};
pub(crate) use sandbox::sandbox;
pub(crate) use unsupported::ignored;

/// The error of a configuration that is invalid or not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The pod needs fields that crustlet doesn't support.
    #[error("{}", .0.join("; "))]
    Unsupported(Vec<String>),
    /// The pod's runtime class doesn't exist.
    #[error("runtimeclass {0} not found; hint: add its manifest")]
    NoRuntimeClass(String),
    /// An environment variable is invalid, or its value isn't supported.
    #[error("container {container:?}: env {name:?}: {reason}")]
    Env {
        container: String,
        name: String,
        reason: String,
    },
    /// A mount, or its subPath, is invalid.
    #[error("container {container:?}: volumeMounts {volume:?}: {reason}")]
    Mount {
        container: String,
        /// The volume's name in the pod.
        volume: String,
        reason: String,
    },
    /// The quantity of a resource can't be parsed.
    #[error("container {container:?}: resources: {resource}: {amount:?} is not a valid quantity")]
    InvalidQuantity {
        container: String,
        resource: &'static str,
        amount: String,
    },
    #[error("container {0:?} has no image")]
    NoImage(String),
    /// The container has `runAsNonRoot` but would run as root, or might.
    #[error("container {container:?}: runAsNonRoot is set, but {reason}")]
    RunsAsRoot { container: String, reason: String },
    /// A path isn't UTF-8, as the CRI requires.
    #[error("{}: the path is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
}

/// The properties of the node that all of its pods share.
#[derive(Debug, Clone)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// The ID of this crustlet, which labels its pods.
    pub(crate) owner: String,
    /// The directory of all pods' logs.
    pub(crate) logs: PathBuf,
    /// The parent cgroup of all pods. Empty means the runtime's choice.
    pub(crate) cgroup_parent: String,
    /// The node's memory in bytes.
    pub(crate) memory: u64,
}

impl NodeInfo {
    /// Returns the properties of this node. `owner` is the ID of this crustlet.
    pub(crate) fn new(settings: &Settings, owner: &str) -> Self {
        let system = rustix::system::sysinfo();
        let unit = u64::from(system.mem_unit);
        Self {
            name: settings.node_name(),
            owner: owner.to_owned(),
            logs: settings.pod_logs_dir(),
            cgroup_parent: settings.cgroup_root.clone(),
            memory: system.totalram.saturating_mul(unit),
        }
    }

    /// Returns the directory of a pod's logs.
    pub(crate) fn pod_logs_dir(&self, pod: &Name, uid: &str) -> PathBuf {
        let Name { namespace, name } = pod;
        self.logs.join(format!("{namespace}_{name}_{uid}"))
    }
}

/// Returns the path of a container's log, relative to the directory of its pod's logs.
pub(crate) fn log_path(container: &str, attempt: u32) -> PathBuf {
    Path::new(container).join(format!("{attempt}.log"))
}

/// The source of one of a container's `volumeMounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// The path on the host, including the subPath.
    pub(crate) host_path: PathBuf,
    /// Whether the mount is read-only even if the container's `volumeMounts` doesn't set `readOnly`.
    pub(crate) read_only: bool,
}

/// Returns the runtime handler of a pod. Empty means the runtime's default.
pub(crate) fn runtime_handler(objects: &Objects, pod: &Pod) -> Result<String, ConfigError> {
    let class = pod.spec.runtime_class_name.as_deref();
    let Some(class) = class.filter(|class| !class.is_empty()) else {
        return Ok(String::new());
    };
    match objects.runtime_classes.get(class) {
        Some(found) => Ok(found.object.handler.clone()),
        None => Err(ConfigError::NoRuntimeClass(class.to_owned())),
    }
}

/// Checks that crustlet supports everything that a pod asks for, as far as that is known before its images are pulled.
pub(crate) fn check(pod: &Pod, node: &NodeInfo) -> Result<(), ConfigError> {
    unsupported::check(pod)?;
    for container in pod.containers() {
        if container.image.as_deref().is_none_or(str::is_empty) {
            return Err(ConfigError::NoImage(container.name.clone()));
        }
        env::environment(pod, node, container)?;
        resources::container(pod, node, container)?;
        for mount in container.volume_mounts.iter().flatten() {
            subpath(pod, node, container, mount)?;
        }
    }
    Ok(())
}

fn utf8(path: &Path) -> Result<String, ConfigError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| ConfigError::NotUtf8(path.to_owned()))
}

#[cfg(test)]
mod tests;
