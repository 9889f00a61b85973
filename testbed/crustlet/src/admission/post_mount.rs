//! The steps after the mount that pods ask of their volumes (KEP-2857, "post mount configuration").

use std::fmt;

use k8s_openapi::api::core::v1::{Container, SELinuxOptions, Volume};

use crate::objects::Pod;

/// A step on a volume after its mount (KEP-2857, "Terminology": "post mount configuration").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PostMountStep {
    /// `securityContext.fsGroup`
    FsGroup,
    /// `securityContext.fsGroupChangePolicy`, which may be one that nobody knows.
    FsGroupChangePolicy(String),
    /// `subPath` or `subPathExpr` of a container's mount.
    SubPath,
    /// `securityContext.seLinuxOptions`, the pod's or a container's.
    SeLinuxRelabel,
}

/// Writes a step as a policy names it.
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

/// `fsGroup and subPath`
pub(super) fn sentence(asks: &[PostMountStep]) -> String {
    let words: Vec<String> = asks.iter().map(PostMountStep::to_string).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Returns the steps that a pod asks of a volume. Several of its volumes with one claim have one mount, so what is
/// asked of one is asked of all.
pub(super) fn of(pod: &Pod, volume: &Volume) -> Vec<PostMountStep> {
    let same: Vec<&Volume> = pod.spec.volumes.iter().flatten().collect();
    let same: Vec<&Volume> = match &volume.persistent_volume_claim {
        Some(source) => same
            .into_iter()
            .filter(|it| claim(it) == Some(&source.claim_name))
            .collect(),
        None => vec![volume],
    };
    let is_same = |name: &str| same.iter().any(|it| it.name == name);
    let mounts = |container: &Container| {
        let mounts = container.volume_mounts.iter().flatten();
        mounts
            .filter(|it| is_same(&it.name))
            .cloned()
            .collect::<Vec<_>>()
    };
    let mut asks = Vec::new();
    let context = pod.spec.security_context.as_ref();
    // Of read-only volumes too: kubelet asks the driver for it whatever the runtime then does.
    if context.and_then(|it| it.fs_group).is_some() {
        asks.push(PostMountStep::FsGroup);
        let policy = context.and_then(|it| it.fs_group_change_policy.clone());
        asks.extend(policy.map(PostMountStep::FsGroupChangePolicy));
    }
    let there = |text: &Option<String>| text.as_deref().is_some_and(|it| !it.is_empty());
    let mut all = pod.containers().flat_map(mounts);
    if all.any(|it| there(&it.sub_path) || there(&it.sub_path_expr)) {
        asks.push(PostMountStep::SubPath);
    }
    let of_pod = context.and_then(|it| it.se_linux_options.as_ref());
    let is_labelled = pod.containers().any(|container| {
        let own = container.security_context.as_ref();
        let options = own.and_then(|it| it.se_linux_options.as_ref()).or(of_pod);
        options.is_some_and(|it| *it != SELinuxOptions::default()) && !mounts(container).is_empty()
    });
    // What nobody writes isn't labelled anew: kubelet asks for that only of volumes that it manages.
    if is_labelled && !same.iter().all(|it| is_read_only(it)) {
        asks.push(PostMountStep::SeLinuxRelabel);
    }
    asks
}

fn claim(volume: &Volume) -> Option<&String> {
    let source = volume.persistent_volume_claim.as_ref();
    source.map(|it| &it.claim_name)
}

fn is_read_only(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref();
    let inline = volume.csi.as_ref();
    claim.and_then(|it| it.read_only) == Some(true)
        || inline.and_then(|it| it.read_only) == Some(true)
}
