//! The CRI's configuration of a pod's sandbox and containers, as kubelet writes it.

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

/// Something that a pod asks can't be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// crustlet doesn't do it, and the pod would run wrongly without.
    #[error("{}", .0.join("; "))]
    Unsupported(Vec<String>),
    /// There is no such class.
    #[error("runtimeclass {0} not found; hint: give its manifest")]
    NoRuntimeClass(String),
    /// A variable without a value that anybody here knows.
    #[error("container {container:?}: env {name:?}: {reason}")]
    Env {
        /// In the pod.
        container: String,
        /// The variable's.
        name: String,
        /// The flaw.
        reason: String,
    },
    /// A part of a volume that can't be one.
    #[error("container {container:?}: volumeMounts {volume:?}: {reason}")]
    Mount {
        /// In the pod.
        container: String,
        /// The volume's name in the pod.
        volume: String,
        /// The flaw.
        reason: String,
    },
    /// The amount of a resource can't be parsed.
    #[error("container {container:?}: resources: {resource}: {amount:?} is no amount")]
    Amount {
        /// In the pod.
        container: String,
        resource: &'static str,
        /// The text of the amount.
        amount: String,
    },
    /// It has no image.
    #[error("container {0:?} has no image")]
    NoImage(String),
    /// `runAsNonRoot`
    #[error("container {container:?} has runAsNonRoot, and {reason}")]
    Root {
        /// In the pod.
        container: String,
        /// The reason, with the user that it would run as.
        reason: String,
    },
    /// The CRI knows paths as texts alone.
    #[error("{}: the path is no UTF-8", .0.display())]
    NotText(PathBuf),
}

/// The facts of a node that all its pods share.
#[derive(Debug, Clone)]
pub(crate) struct NodeFacts {
    /// The node's name.
    pub(crate) name: String,
    /// The id of this crustlet, which labels its pods.
    pub(crate) owner: String,
    /// The directory of containers' logs.
    pub(crate) logs: PathBuf,
    /// The cgroup of all pods. Empty means the runtime's choice.
    pub(crate) cgroup_parent: String,
    /// In bytes: the node's.
    pub(crate) memory: u64,
}

impl NodeFacts {
    /// This one.
    pub(crate) fn of(settings: &Settings, owner: &str) -> Self {
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
    pub(crate) fn logs_of(&self, pod: &Name, uid: &str) -> PathBuf {
        let Name { namespace, name } = pod;
        self.logs.join(format!("{namespace}_{name}_{uid}"))
    }
}

/// Returns the path of a container's log below its pod's directory.
pub(crate) fn log_path(container: &str, attempt: u32) -> PathBuf {
    Path::new(container).join(format!("{attempt}.log"))
}

/// The source of one of a container's `volumeMounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// On the host, with its subPath.
    pub(crate) host_path: PathBuf,
    /// Whatever the container says.
    pub(crate) read_only: bool,
}

/// Returns the runtime handler of a pod. Empty means the runtime's choice.
pub(crate) fn handler(objects: &Objects, pod: &Pod) -> Result<String, ConfigError> {
    let class = pod.spec.runtime_class_name.as_deref();
    let Some(class) = class.filter(|it| !it.is_empty()) else {
        return Ok(String::new());
    };
    match objects.runtime_classes.get(class) {
        Some(found) => Ok(found.object.handler.clone()),
        None => Err(ConfigError::NoRuntimeClass(class.to_owned())),
    }
}

/// Checks that crustlet supports all that a pod asks for, as far as that is known before its images are pulled.
pub(crate) fn check(pod: &Pod, node: &NodeFacts) -> Result<(), ConfigError> {
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

fn text(path: &Path) -> Result<String, ConfigError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| ConfigError::NotText(path.to_owned()))
}

#[cfg(test)]
mod tests;
