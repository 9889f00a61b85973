//! Which part of a volume a container mounts.

use std::path::{Component, PathBuf};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::env::{environment, expand};
use super::{ConfigError, NodeFacts};
use crate::objects::Pod;

/// The subPath of a mount, or none for the whole volume: relative, and without `..` and `.` in it.
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
