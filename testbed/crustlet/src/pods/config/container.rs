//! The configuration of a container, and the subPaths of its mounts.

use std::path::{Component, Path, PathBuf};

use crust_proto::cri::v1::{
    ContainerConfig, ContainerMetadata, Image, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
    MountPropagation,
};
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::env::{environment, expand};
use super::sandbox::pods_labels;
use super::{ConfigError, NodeFacts, Source, log_path, resources, security, text};
use crate::objects::Pod;
use crate::pods::{StartContainer, labels};

/// A container that is to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewContainer<'a> {
    pub(crate) container: &'a Container,
    pub(crate) step: &'a StartContainer,
    /// Its image, which is there.
    pub(crate) image: &'a Image,
    /// The sources of its `volumeMounts`, in their order.
    pub(crate) sources: &'a [Source],
}

/// Returns the configuration of a pod's container.
pub(crate) fn container(
    pod: &Pod,
    node: &NodeFacts,
    new: NewContainer<'_>,
) -> Result<ContainerConfig, ConfigError> {
    let NewContainer {
        container,
        step,
        image,
        sources,
    } = new;
    let environment = environment(pod, node, container)?;
    let words = |words: &Option<Vec<String>>| {
        let words = words.iter().flatten();
        words.map(|it| expand(it, &environment).text).collect()
    };
    let (command, args) = (words(&container.command), words(&container.args));
    let resources = resources::container(pod, node, container)?;
    let security = security::container(pod, container, image)?;
    let labels = pods_labels(pod, node);
    let own = (labels::CONTAINER_NAME.to_owned(), container.name.clone());
    let annotations = [
        (labels::RESTARTS, step.attempt.to_string()),
        (labels::BACKOFF, step.backoff.as_secs().to_string()),
    ];
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: step.attempt,
        }),
        // The very one that was looked at, whatever its name comes to mean meanwhile.
        image: Some(ImageSpec {
            image: image.id.clone(),
            ..ImageSpec::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment
            .into_iter()
            .map(|(key, value)| KeyValue { key, value })
            .collect(),
        mounts: mounts(container, sources)?,
        labels: labels.into_iter().chain([own]).collect(),
        annotations: annotations
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
        log_path: text(&log_path(&container.name, step.attempt))?,
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security),
        }),
        ..ContainerConfig::default()
    })
}

fn mounts(container: &Container, sources: &[Source]) -> Result<Vec<Mount>, ConfigError> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let with_sources = mounts.iter().enumerate().map(|(at, mount)| {
        let source = sources.get(at).ok_or_else(|| ConfigError::Mount {
            container: container.name.clone(),
            volume: mount.name.clone(),
            reason: "nobody has said where the volume is".to_owned(),
        });
        one(mount, source?)
    });
    with_sources.collect()
}

fn one(mount: &VolumeMount, source: &Source) -> Result<Mount, ConfigError> {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    Ok(Mount {
        container_path: text(&Path::new("/").join(&mount.mount_path))?,
        host_path: text(&source.host_path)?,
        readonly: source.read_only || mount.read_only == Some(true),
        propagation: propagation.into(),
        ..Mount::default()
    })
}

/// Returns the subPath of a mount: relative, and without `..` and `.` in it. `None` is the whole volume.
pub(crate) fn subpath(
    pod: &Pod,
    node: &NodeFacts,
    container: &Container,
    mount: &VolumeMount,
) -> Result<Option<PathBuf>, ConfigError> {
    let refused = |reason: String| ConfigError::Mount {
        container: container.name.clone(),
        volume: mount.name.clone(),
        reason,
    };
    let said = |text: &Option<String>| text.clone().filter(|it| !it.is_empty());
    let (field, path) = match (said(&mount.sub_path), said(&mount.sub_path_expr)) {
        (None, None) => return Ok(None),
        (Some(path), None) => ("subPath", path),
        (None, Some(expression)) => {
            let expanded = expand(&expression, &environment(pod, node, container)?);
            if let Some(name) = expanded.missing {
                let reason =
                    format!("subPathExpr {expression:?}: the container has no env {name:?}");
                return Err(refused(reason));
            }
            ("subPathExpr", expanded.text)
        }
        (Some(_), Some(_)) => {
            return Err(refused("it has both subPath and subPathExpr".to_owned()));
        }
    };
    let mut parts = PathBuf::new();
    for component in PathBuf::from(&path).components() {
        let reason = match component {
            Component::Normal(part) => {
                parts.push(part);
                continue;
            }
            Component::CurDir => continue,
            Component::ParentDir => "has `..` in it",
            Component::RootDir | Component::Prefix(_) => "isn't relative to the volume",
        };
        return Err(refused(format!("{field} {path:?} {reason}")));
    }
    if path.contains('\0') {
        return Err(refused(format!("{field} {path:?} has a NUL in it")));
    }
    Ok(Some(parts).filter(|it| !it.as_os_str().is_empty()))
}
