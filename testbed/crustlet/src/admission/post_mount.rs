//! The steps after the mount that a pod needs for its volumes (KEP-2857, "post mount configuration").

use std::fmt;

use k8s_openapi::api::core::v1::{Container, SELinuxOptions, Volume};

use crate::objects::Pod;

/// A step that is applied to a volume after its mount (KEP-2857, "Terminology": "post mount configuration").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PostMountStep {
    /// `securityContext.fsGroup`
    FsGroup,
    /// `securityContext.fsGroupChangePolicy`, which may have an unknown value.
    FsGroupChangePolicy(String),
    /// `subPath` or `subPathExpr` of a container's mount.
    SubPath,
    /// `securityContext.seLinuxOptions` of the pod or of a container.
    SeLinuxRelabel,
}

/// Formats a step with the field's name in a policy.
impl fmt::Display for PostMountStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FsGroup => f.write_str("fsGroup"),
            Self::FsGroupChangePolicy(policy) => write!(f, "fsGroupChangePolicy {policy}"),
            Self::SubPath => f.write_str("subPath"),
            Self::SeLinuxRelabel => f.write_str("seLinuxRelabel"),
        }
    }
}

/// Joins steps into a list such as `fsGroup and subPath`.
pub(super) fn join_steps(steps: &[PostMountStep]) -> String {
    let words: Vec<String> = steps.iter().map(PostMountStep::to_string).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Returns the steps that a pod needs for a volume. Volumes of the pod that use the same claim share one mount, so the
/// steps of all of them count.
pub(super) fn needed_steps(pod: &Pod, volume: &Volume) -> Vec<PostMountStep> {
    let all: Vec<&Volume> = pod.spec.volumes.iter().flatten().collect();
    let volumes: Vec<&Volume> = match &volume.persistent_volume_claim {
        Some(source) => all
            .into_iter()
            .filter(|other| claim(other) == Some(&source.claim_name))
            .collect(),
        None => vec![volume],
    };
    let is_among = |name: &str| volumes.iter().any(|volume| volume.name == name);
    let mounts = |container: &Container| {
        let mounts = container.volume_mounts.iter().flatten();
        mounts
            .filter(|mount| is_among(&mount.name))
            .cloned()
            .collect::<Vec<_>>()
    };
    let mut steps = Vec::new();
    let context = pod.spec.security_context.as_ref();
    // Read-only volumes count too: kubelet passes the group to the driver even if it isn't applied to them.
    if context.and_then(|context| context.fs_group).is_some() {
        steps.push(PostMountStep::FsGroup);
        let policy = context.and_then(|context| context.fs_group_change_policy.clone());
        steps.extend(policy.map(PostMountStep::FsGroupChangePolicy));
    }
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let mut all_mounts = pod.containers().flat_map(mounts);
    if all_mounts.any(|mount| is_set(&mount.sub_path) || is_set(&mount.sub_path_expr)) {
        steps.push(PostMountStep::SubPath);
    }
    let pod_options = context.and_then(|context| context.se_linux_options.as_ref());
    let is_labelled = pod.containers().any(|container| {
        let context = container.security_context.as_ref();
        let options = context
            .and_then(|context| context.se_linux_options.as_ref())
            .or(pod_options);
        options.is_some_and(|options| *options != SELinuxOptions::default())
            && !mounts(container).is_empty()
    });
    // kubelet doesn't relabel read-only volumes.
    if is_labelled && !volumes.iter().all(|volume| is_read_only(volume)) {
        steps.push(PostMountStep::SeLinuxRelabel);
    }
    steps
}

fn claim(volume: &Volume) -> Option<&String> {
    let source = volume.persistent_volume_claim.as_ref();
    source.map(|source| &source.claim_name)
}

fn is_read_only(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref();
    let inline = volume.csi.as_ref();
    claim.and_then(|claim| claim.read_only) == Some(true)
        || inline.and_then(|inline| inline.read_only) == Some(true)
}
