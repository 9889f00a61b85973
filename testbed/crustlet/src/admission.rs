//! Decides by a policy which volumes of a pod are deferred (KEP-2857, "Setting `DeferFSMount` in `PodSpec`").
//!
//! The KEP leaves the decision to a webhook or a scheduler plugin that knows the triples of storage class, runtime
//! class and supported post-mount configuration. In crustlet, the triples are the rules of a policy file.

mod policy;
mod post_mount;

use std::fmt;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, Volume};
use serde_json::Value;

use crate::claims::request::class_of;
use crate::objects::{Kind, Name, Objects, Pod, manifest, set_deferred};

pub(crate) use policy::DeferPolicy;
use policy::{DeferRule, StorageSelector};
pub(crate) use post_mount::PostMountStep;

/// The result of applying a policy to a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Admission {
    /// The pod's manifest, with `deferFSMount: true` added to the deferred volumes. Nothing else is changed.
    pub(crate) document: Value,
    /// The decisions in the order of the pod's volumes.
    pub(crate) decisions: Vec<VolumeDecision>,
}

/// The decision about a volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeDecision {
    /// The volume's name in the pod.
    pub(crate) volume: String,
    pub(crate) decision: DeferralDecision,
}

/// Formats a decision: `volume data: deferred: …`.
impl fmt::Display for VolumeDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}: {}", self.volume, self.decision)
    }
}

/// Whether a volume is deferred, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeferralDecision {
    Deferred(DeferredBy),
    /// The volume isn't deferred, and its manifest isn't changed.
    NotDeferred(NotDeferredReason),
}

impl fmt::Display for DeferralDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deferred(by) => write!(f, "deferred: {by}"),
            Self::NotDeferred(reason) => write!(f, "not deferred: {reason}"),
        }
    }
}

/// The origin of a volume's deferral.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeferredBy {
    /// The pod's manifest, which the policy doesn't override.
    Pod,
    Rule {
        storage: StorageSelector,
        runtime_class: String,
    },
}

impl fmt::Display for DeferredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("set in the pod"),
            Self::Rule {
                storage,
                runtime_class,
            } => write!(f, "{storage} with runtime class {runtime_class}"),
        }
    }
}

/// The reason why a volume isn't deferred.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDeferredReason {
    /// The volume is of another kind, such as an `emptyDir` or a Secret.
    #[error("the volume is neither a claim nor a CSI volume")]
    NotCsiOrClaim,
    /// The field can't be set after the pod has been started (KEP-2857, "`DeferFSMount` field in Pod Spec").
    #[error("the pod has been started already")]
    Started,
    /// The pod uses the node's default runtime handler, to which no rule applies.
    #[error("the pod has no runtimeClassName")]
    NoRuntimeClass,
    #[error("persistentvolumeclaim {0} not found; hint: add its manifest")]
    ClaimNotFound(Name),
    /// The volume is a raw block volume.
    #[error("volumeMode Block: there is no file system to mount")]
    BlockMode,
    /// The claim's volume isn't a CSI volume.
    #[error("persistentvolume {0} is not a CSI volume")]
    NotCsi(String),
    /// The claim has no storage class, and isn't bound to a CSI volume.
    #[error(
        "persistentvolumeclaim {0} has no storage class, and isn't bound to a volume of a CSI driver"
    )]
    NoStorage(Name),
    /// No rule has this storage and this runtime class.
    #[error("no rule has {storage} with runtime class {runtime_class}")]
    NoRule {
        storage: StorageSelector,
        runtime_class: String,
    },
    /// The rule doesn't have all post-mount steps that the pod needs (KEP-2857, stories 2 and 3).
    #[error(
        "the pod needs {}, which the rule for {storage} with runtime class {runtime_class} doesn't have in postMount",
        post_mount::join_steps(missing)
    )]
    Unsupported {
        storage: StorageSelector,
        runtime_class: String,
        /// The steps that the rule doesn't have.
        missing: Vec<PostMountStep>,
    },
}

/// Sets `deferFSMount` of the volumes for which a rule has all post-mount steps that the pod needs.
///
/// `false` counts as unset: the KEP's field is a bool, which an API server omits if it is false, so a webhook couldn't
/// distinguish the two either.
pub(crate) fn admit(
    policy: &DeferPolicy,
    objects: &Objects,
    pod: &Pod,
    document: &Value,
) -> Admission {
    let mut document = document.clone();
    let is_started = is_started(&document);
    let volumes = pod.spec.volumes.iter().flatten();
    let decisions = volumes
        .map(|volume| {
            let decision = if pod.deferred.contains(&volume.name) {
                DeferralDecision::Deferred(DeferredBy::Pod)
            } else if is_started {
                DeferralDecision::NotDeferred(NotDeferredReason::Started)
            } else {
                decide(policy, objects, pod, volume)
                    .map_or_else(DeferralDecision::NotDeferred, DeferralDecision::Deferred)
            };
            if matches!(
                decision,
                DeferralDecision::Deferred(DeferredBy::Rule { .. })
            ) {
                set_deferred(&mut document, &volume.name);
            }
            VolumeDecision {
                volume: volume.name.clone(),
                decision,
            }
        })
        .collect();
    Admission {
        document,
        decisions,
    }
}

/// Applies a policy to all pods, and replaces their manifests.
pub(crate) fn admit_all(policy: &DeferPolicy, objects: &mut Objects) {
    let pods: Vec<_> = objects.pods.values().cloned().collect();
    for pod in pods {
        let key = (Kind::Pod, pod.name.clone());
        let Some(document) = objects.documents.get(&key) else {
            continue;
        };
        let admitted = admit(policy, objects, &pod, document).document;
        if **document != admitted
            && let Ok(manifest) = manifest::from_document(admitted)
        {
            objects.insert(manifest);
        }
    }
}

/// Returns whether a pod has been started (KEP-2857, "`DeferFSMount` field in Pod Spec": "marked by the presence of
/// Kubelet managed pod conditions").
fn is_started(document: &Value) -> bool {
    let conditions = document.pointer("/status/conditions");
    let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    conditions.any(|condition| {
        let kind = condition.get("type").and_then(Value::as_str);
        matches!(kind, Some("Initialized" | "Ready" | "ContainersReady"))
    })
}

fn decide(
    policy: &DeferPolicy,
    objects: &Objects,
    pod: &Pod,
    volume: &Volume,
) -> Result<DeferredBy, NotDeferredReason> {
    let storage = storage(objects, pod, volume)?;
    let runtime_class = pod.spec.runtime_class_name.clone();
    let runtime_class = runtime_class
        .filter(|runtime_class| !runtime_class.is_empty())
        .ok_or(NotDeferredReason::NoRuntimeClass)?;
    let Some(DeferRule { post_mount, .. }) = policy.rule(&storage, &runtime_class) else {
        return Err(NotDeferredReason::NoRule {
            storage,
            runtime_class,
        });
    };
    let needed = post_mount::needed_steps(pod, volume).into_iter();
    let missing: Vec<PostMountStep> = needed.filter(|step| !post_mount.has(step)).collect();
    if missing.is_empty() {
        Ok(DeferredBy::Rule {
            storage,
            runtime_class,
        })
    } else {
        Err(NotDeferredReason::Unsupported {
            storage,
            runtime_class,
            missing,
        })
    }
}

/// Returns the storage of a volume in the form in which rules name it.
fn storage(
    objects: &Objects,
    pod: &Pod,
    volume: &Volume,
) -> Result<StorageSelector, NotDeferredReason> {
    if let Some(source) = &volume.persistent_volume_claim {
        let name = Name::new(&pod.name.namespace, &source.claim_name);
        let claim = objects.claims.get(&name);
        let claim = claim.ok_or_else(|| NotDeferredReason::ClaimNotFound(name.clone()))?;
        claim_storage(objects, name, claim.spec.as_ref())
    } else if let Some(source) = &volume.ephemeral {
        let name = crate::volumes::spec::ephemeral_claim(pod, &volume.name);
        let template = source.volume_claim_template.as_ref();
        claim_storage(objects, name, template.map(|template| &template.spec))
    } else if let Some(source) = &volume.csi {
        Ok(StorageSelector::Driver(source.driver.clone()))
    } else {
        Err(NotDeferredReason::NotCsiOrClaim)
    }
}

fn claim_storage(
    objects: &Objects,
    name: Name,
    claim: Option<&PersistentVolumeClaimSpec>,
) -> Result<StorageSelector, NotDeferredReason> {
    let Some(claim) = claim else {
        return Err(NotDeferredReason::NoStorage(name));
    };
    let bound = claim.volume_name.as_ref();
    let bound =
        bound.and_then(|volume_name| Some((volume_name, objects.volumes.get(volume_name)?)));
    let bound = bound.and_then(|(name, volume)| Some((name, volume.spec.as_ref()?)));
    let is_block = |mode: Option<&str>| mode == Some("Block");
    if is_block(claim.volume_mode.as_deref())
        || bound.is_some_and(|(_, volume)| is_block(volume.volume_mode.as_deref()))
    {
        return Err(NotDeferredReason::BlockMode);
    }
    let driver = bound
        .map(|(name, volume)| match &volume.csi {
            Some(csi) => Ok(csi.driver.clone()),
            None => Err(NotDeferredReason::NotCsi(name.clone())),
        })
        .transpose()?;
    match (class_of(objects, claim), driver) {
        (Some(class), _) => Ok(StorageSelector::Class(class.to_owned())),
        (None, Some(driver)) => Ok(StorageSelector::Driver(driver)),
        (None, None) => Err(NotDeferredReason::NoStorage(name)),
    }
}

#[cfg(test)]
mod tests;
