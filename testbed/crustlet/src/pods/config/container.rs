//! The configuration of a container, and the subPaths of its mounts.

use std::path::{Component, Path, PathBuf};

use crust_proto::cri::v1::{
    ContainerConfig, ContainerMetadata, Image, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
    MountPropagation,
};
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::env::{environment, expand};
use super::sandbox::identity_labels;
use super::{ConfigError, MountSource, NodeInfo, log_path, resources, security, utf8};
use crate::objects::Pod;
use crate::pods::{StartContainer, labels};

#[derive(Debug, Clone, Copy)]
pub(crate) struct NewContainer<'a> {
    pub(crate) container: &'a Container,
    pub(crate) step: &'a StartContainer,
    pub(crate) image: &'a Image,
    /// The sources of its `volumeMounts`, in their order.
    pub(crate) sources: &'a [MountSource],
}

/// Returns the configuration of a pod's container.
pub(crate) fn container(
    pod: &Pod,
    node: &NodeInfo,
    new: NewContainer<'_>,
) -> Result<ContainerConfig, ConfigError> {
    let NewContainer {
        container,
        step,
        image,
        sources,
    } = new;
    let environment = environment(pod, node, container)?;
    let expand_all = |words: &Option<Vec<String>>| {
        let words = words.iter().flatten();
        words.map(|word| expand(word, &environment).text).collect()
    };
    let (command, args) = (expand_all(&container.command), expand_all(&container.args));
    let resources = resources::container(pod, node, container)?;
    let security = security::container(pod, container, image)?;
    let labels = identity_labels(pod, node);
    let name_label = (labels::CONTAINER_NAME.to_owned(), container.name.clone());
    let annotations = [
        (labels::RESTARTS, step.attempt.to_string()),
        (labels::BACKOFF, step.backoff.as_secs().to_string()),
    ];
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: step.attempt,
        }),
        // The image is given by its ID, because its name may refer to another image by now.
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
        labels: labels.into_iter().chain([name_label]).collect(),
        annotations: annotations
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
        log_path: utf8(&log_path(&container.name, step.attempt))?,
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

fn mounts(container: &Container, sources: &[MountSource]) -> Result<Vec<Mount>, ConfigError> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let with_sources = mounts.iter().enumerate().map(|(index, mount)| {
        let source = sources.get(index).ok_or_else(|| ConfigError::Mount {
            container: container.name.clone(),
            volume: mount.name.clone(),
            reason: "the volume has no source".to_owned(),
        });
        cri_mount(mount, source?)
    });
    with_sources.collect()
}

fn cri_mount(mount: &VolumeMount, source: &MountSource) -> Result<Mount, ConfigError> {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    Ok(Mount {
        container_path: utf8(&Path::new("/").join(&mount.mount_path))?,
        host_path: utf8(&source.host_path)?,
        readonly: source.read_only || mount.read_only == Some(true),
        propagation: propagation.into(),
        ..Mount::default()
    })
}

/// Returns the subPath of a mount as a relative path without `.` and `..`. `None` means the whole volume.
pub(crate) fn subpath(
    pod: &Pod,
    node: &NodeInfo,
    container: &Container,
    mount: &VolumeMount,
) -> Result<Option<PathBuf>, ConfigError> {
    let mount_error = |reason: String| ConfigError::Mount {
        container: container.name.clone(),
        volume: mount.name.clone(),
        reason,
    };
    let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (field, path) = match (non_empty(&mount.sub_path), non_empty(&mount.sub_path_expr)) {
        (None, None) => return Ok(None),
        (Some(path), None) => ("subPath", path),
        (None, Some(expression)) => {
            let expanded = expand(&expression, &environment(pod, node, container)?);
            if let Some(name) = expanded.missing {
                let reason = format!(
                    "subPathExpr {expression:?}: the container has no env variable {name:?}"
                );
                return Err(mount_error(reason));
            }
            ("subPathExpr", expanded.text)
        }
        (Some(_), Some(_)) => {
            return Err(mount_error(
                "subPath and subPathExpr are both set".to_owned(),
            ));
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
            Component::ParentDir => "contains `..`",
            Component::RootDir | Component::Prefix(_) => "isn't relative to the volume",
        };
        return Err(mount_error(format!("{field} {path:?} {reason}")));
    }
    if path.contains('\0') {
        return Err(mount_error(format!("{field} {path:?} contains a NUL byte")));
    }
    Ok(Some(parts).filter(|path| !path.as_os_str().is_empty()))
}
