//! Which of a pod's volumes are deferred, by a policy (KEP-2857, "Setting `DeferFSMount` in `PodSpec`").
//!
//! The KEP leaves it to a webhook or a scheduler's plugin, which knows the triples of storage class, runtime class
//! and what the two can do after the mount. Here it is a file that is asked when a pod comes.

mod policy;
mod post_mount;

use std::fmt;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, Volume};
use serde_json::Value;

use crate::claims::request::class_of;
use crate::objects::{Kind, Name, Objects, Pod, manifest, set_deferred};

pub(crate) use policy::Policy;
use policy::{Rule, Storage};
pub(crate) use post_mount::PostMountStep;

/// What a policy makes of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Admission {
    /// The pod, with `deferFSMount: true` where it is to be; nothing else is changed.
    pub(crate) document: Value,
    /// In the order of the pod's volumes.
    pub(crate) decisions: Vec<Decision>,
}

/// The decision about a volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Its name in the pod.
    pub(crate) volume: String,
    /// What was decided.
    pub(crate) verdict: Verdict,
}

/// `volume data: deferred: …`
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}: {}", self.volume, self.verdict)
    }
}

/// Whether a volume is deferred, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is.
    Deferred(DeferredBy),
    /// It is left as it was.
    Left(Reason),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deferred(by) => write!(f, "deferred: {by}"),
            Self::Left(reason) => write!(f, "left: {reason}"),
        }
    }
}

/// Who has deferred a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeferredBy {
    /// The pod's manifest, whatever the policy says.
    Pod,
    /// A rule of the policy.
    Rule {
        /// What it is of.
        storage: Storage,
        /// On which.
        runtime_class: String,
    },
}

impl fmt::Display for DeferredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("the pod says so"),
            Self::Rule {
                storage,
                runtime_class,
            } => write!(f, "{storage} with runtime class {runtime_class}"),
        }
    }
}

/// Why a volume is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reason {
    /// An `emptyDir`, a Secret.
    #[error("it is no claim's and no CSI driver's")]
    Kind,
    /// KEP-2857, "`DeferFSMount` field in Pod Spec": from then on it can't be set.
    #[error("the pod was started already")]
    Started,
    /// The node's usual handler mounts nothing.
    #[error("the pod has no runtimeClassName")]
    NoRuntimeClass,
    /// There is no such claim.
    #[error("persistentvolumeclaim {0} not found; hint: give its manifest")]
    NoClaim(Name),
    /// A raw device.
    #[error("volumeMode Block: there is no file system to mount")]
    Block,
    /// It isn't a CSI driver's.
    #[error("persistentvolume {0} is no CSI driver's")]
    NotCsi(String),
    /// A claim without either.
    #[error("persistentvolumeclaim {0} has no storage class, and no volume that has a driver")]
    NoStorage(Name),
    /// None of the pair.
    #[error("no rule has {storage} with runtime class {runtime_class}")]
    NoRule {
        /// What the volume is of.
        storage: Storage,
        /// The pod's.
        runtime_class: String,
    },
    /// KEP-2857, stories 2 and 3.
    #[error(
        "the pod asks for {}, which the rule of {storage} with runtime class {runtime_class} doesn't have in its postMount",
        post_mount::sentence(lacks)
    )]
    Unsupported {
        /// The rule's.
        storage: Storage,
        /// The rule's.
        runtime_class: String,
        /// What it doesn't have.
        lacks: Vec<PostMountStep>,
    },
}

/// Sets `deferFSMount` of the volumes for which a rule has all that the pod asks of them.
///
/// `false` is what absence is: the KEP's field is a bool that an API server leaves out where it is false, so no
/// webhook could tell one from the other.
pub(crate) fn admit(policy: &Policy, objects: &Objects, pod: &Pod, document: &Value) -> Admission {
    let mut document = document.clone();
    let started = is_started(&document);
    let volumes = pod.spec.volumes.iter().flatten();
    let decisions = volumes
        .map(|volume| {
            let verdict = if pod.deferred.contains(&volume.name) {
                Verdict::Deferred(DeferredBy::Pod)
            } else if started {
                Verdict::Left(Reason::Started)
            } else {
                judge(policy, objects, pod, volume).map_or_else(Verdict::Left, Verdict::Deferred)
            };
            if matches!(verdict, Verdict::Deferred(DeferredBy::Rule { .. })) {
                set_deferred(&mut document, &volume.name);
            }
            Decision {
                volume: volume.name.clone(),
                verdict,
            }
        })
        .collect();
    Admission {
        document,
        decisions,
    }
}

/// The same for all pods that there are, in their place.
pub(crate) fn admit_all(policy: &Policy, objects: &mut Objects) {
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

/// KEP-2857, "`DeferFSMount` field in Pod Spec": "marked by the presence of Kubelet managed pod conditions".
fn is_started(document: &Value) -> bool {
    let conditions = document.pointer("/status/conditions");
    let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    conditions.any(|it| {
        let kind = it.get("type").and_then(Value::as_str);
        matches!(kind, Some("Initialized" | "Ready" | "ContainersReady"))
    })
}

fn judge(
    policy: &Policy,
    objects: &Objects,
    pod: &Pod,
    volume: &Volume,
) -> Result<DeferredBy, Reason> {
    let storage = storage(objects, pod, volume)?;
    let runtime_class = pod.spec.runtime_class_name.clone();
    let runtime_class = runtime_class
        .filter(|it| !it.is_empty())
        .ok_or(Reason::NoRuntimeClass)?;
    let Some(Rule { post_mount, .. }) = policy.rule(&storage, &runtime_class) else {
        return Err(Reason::NoRule {
            storage,
            runtime_class,
        });
    };
    let asks = post_mount::of(pod, volume).into_iter();
    let lacks: Vec<PostMountStep> = asks.filter(|ask| !post_mount.has(ask)).collect();
    if lacks.is_empty() {
        Ok(DeferredBy::Rule {
            storage,
            runtime_class,
        })
    } else {
        Err(Reason::Unsupported {
            storage,
            runtime_class,
            lacks,
        })
    }
}

/// What a volume is of, which a rule may name.
fn storage(objects: &Objects, pod: &Pod, volume: &Volume) -> Result<Storage, Reason> {
    if let Some(source) = &volume.persistent_volume_claim {
        let name = Name::new(&pod.name.namespace, &source.claim_name);
        let claim = objects.claims.get(&name);
        let claim = claim.ok_or_else(|| Reason::NoClaim(name.clone()))?;
        of_claim(objects, name, claim.spec.as_ref())
    } else if let Some(source) = &volume.ephemeral {
        let name = crate::volumes::spec::ephemeral_claim(pod, &volume.name);
        let template = source.volume_claim_template.as_ref();
        of_claim(objects, name, template.map(|it| &it.spec))
    } else if let Some(source) = &volume.csi {
        Ok(Storage::Driver(source.driver.clone()))
    } else {
        Err(Reason::Kind)
    }
}

fn of_claim(
    objects: &Objects,
    name: Name,
    claim: Option<&PersistentVolumeClaimSpec>,
) -> Result<Storage, Reason> {
    let Some(claim) = claim else {
        return Err(Reason::NoStorage(name));
    };
    let bound = claim.volume_name.as_ref();
    let bound = bound.and_then(|it| Some((it, objects.volumes.get(it)?)));
    let bound = bound.and_then(|(name, it)| Some((name, it.spec.as_ref()?)));
    let is_block = |mode: Option<&str>| mode == Some("Block");
    if is_block(claim.volume_mode.as_deref())
        || bound.is_some_and(|(_, it)| is_block(it.volume_mode.as_deref()))
    {
        return Err(Reason::Block);
    }
    let driver = bound
        .map(|(name, volume)| match &volume.csi {
            Some(csi) => Ok(csi.driver.clone()),
            None => Err(Reason::NotCsi(name.clone())),
        })
        .transpose()?;
    match (class_of(objects, claim), driver) {
        (Some(class), _) => Ok(Storage::Class(class.to_owned())),
        (None, Some(driver)) => Ok(Storage::Driver(driver)),
        (None, None) => Err(Reason::NoStorage(name)),
    }
}

#[cfg(test)]
mod tests;
