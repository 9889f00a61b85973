//! Resolves a pod's volume to its driver, its handle and the pod's mount options.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaim,
    SecretReference, Volume,
};
use serde::{Deserialize, Serialize};

use super::claim_ref::{ClaimRef, claim_of, compare_claim_ref, is_bound, volume_of};
use crate::objects::manifest::is_driver_name;
use crate::objects::{Name, Objects, Pod};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeId {
    pub(crate) driver: String,
    /// `volume_id` of CSI's calls.
    pub(crate) handle: String,
}

/// Formats kubelet's unique name of the volume.
impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }
}

/// Whether a volume outlives the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Lifecycle {
    /// The volume is a `PersistentVolume`, which outlives the pod.
    Persistent,
    /// The volume is an inline volume of a pod. `NodePublishVolume` creates it.
    Ephemeral,
}

impl Lifecycle {
    /// Returns the name in `vol_data.json` and in `CSIDriver`'s `volumeLifecycleModes`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "Persistent",
            Self::Ephemeral => "Ephemeral",
        }
    }
}

/// A CSI volume, with what the driver's calls need.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VolumeSpec {
    pub(crate) id: VolumeId,
    /// The name of the volume's directory in a pod's directory: the `PersistentVolume`'s name, or an inline volume's
    /// name in the pod.
    pub(crate) directory: String,
    pub(crate) lifecycle: Lifecycle,
    /// Empty if the driver chooses the file system.
    pub(crate) fs_type: String,
    /// The mount options, as in `mount -o`.
    pub(crate) mount_options: Vec<String>,
    /// `volume_context` of CSI's calls.
    pub(crate) attributes: BTreeMap<String, String>,
    /// Kubernetes' access modes, such as `ReadWriteOncePod`.
    pub(crate) access_modes: Vec<String>,
    /// Whether the volume is read-only for all pods.
    pub(crate) read_only: bool,
    /// The secret for `NodeStageVolume`.
    pub(crate) stage_secret: Option<Name>,
    /// The secret for `NodePublishVolume`.
    pub(crate) publish_secret: Option<Name>,
    /// The secret for `NodeExpandVolume`.
    pub(crate) expand_secret: Option<Name>,
    /// The claim that the volume is bound to.
    pub(crate) claim: Option<Name>,
    /// `spec.capacity` of the `PersistentVolume`, in bytes.
    pub(crate) capacity: Option<i64>,
    /// `allowRuntimeAssistedMount` of the storage class.
    pub(crate) allows_runtime: bool,
}

impl VolumeSpec {
    /// Returns whether only one pod at a time may use the volume (KEP-2485).
    pub(crate) fn is_exclusive(&self) -> bool {
        let mut modes = self.access_modes.iter();
        modes.any(|mode| mode == "ReadWriteOncePod")
    }
}

/// A pod's mount of a volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MountSpec {
    pub(crate) volume: VolumeSpec,
    /// `deferFSMount` of the volume, as the pod or the admission policy sets it.
    pub(crate) deferred: bool,
    /// Whether the volume is read-only for this pod.
    pub(crate) read_only: bool,
    /// The pod's fsGroup.
    pub(crate) fs_group: Option<i64>,
    /// The pod's `fsGroupChangePolicy`: `Always` or `OnRootMismatch`.
    pub(crate) change_policy: Option<String>,
    /// The socket of the pod's runtime handler (KEP-2857's earlier draft).
    pub(crate) runtime: Option<PathBuf>,
    /// Whether a container of the pod mounts a subPath.
    pub(crate) has_subpath: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ResolvedVolume {
    Csi(Box<MountSpec>),
    EmptyDir,
    HostPath(PathBuf),
}

/// The reason why a pod's volume can't be resolved. Some reasons pass, such as a claim that isn't bound yet.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ResolveError {
    #[error("persistentvolumeclaim {0} not found; hint: add its manifest")]
    ClaimNotFound(Name),
    /// The claim has no volume yet.
    #[error("persistentvolumeclaim {0} is not bound yet")]
    ClaimNotBound(Name),
    #[error(
        "persistentvolumeclaim {claim}: persistentvolume {volume} not found; hint: add its manifest"
    )]
    VolumeNotFound {
        claim: Name,
        /// The volume that the claim names.
        volume: String,
    },
    /// The claim's volume is bound to another claim.
    #[error(
        "persistentvolumeclaim {0}: persistentvolume {1} is bound to persistentvolumeclaim {2}"
    )]
    BoundToOther(Name, String, Name),
    #[error("persistentvolume {0} is not a CSI volume")]
    NotCsi(String),
    /// The claim has the name of an ephemeral volume's claim, but wasn't created for the pod.
    #[error(
        "persistentvolumeclaim {0} was not created for pod {1}; hint: rename the volume in the pod, or delete the claim if its owner in metadata.ownerReferences doesn't need it"
    )]
    NotOwned(Name, Name),
    #[error(
        "volumeMode Block: crustlet doesn't support raw block volumes; hint: use volumeMode: Filesystem"
    )]
    RawBlock,
    /// The volume is of another kind, such as a `ConfigMap`, a Secret or NFS.
    #[error(
        "crustlet doesn't support this kind of volume; hint: use persistentVolumeClaim, ephemeral, csi, emptyDir or hostPath"
    )]
    UnsupportedKind,
    /// The driver's name can't be part of a path.
    #[error("persistentvolume {0}: {1:?} is not a valid driver name")]
    InvalidDriver(String, String),
    /// Without a handle, the driver's volumes can't be distinguished.
    #[error(
        "persistentvolume {0}: csi.volumeHandle is empty; hint: set it to the driver's ID of the volume"
    )]
    EmptyHandle(String),
    #[error("runtimeclass {0} not found; hint: add its manifest")]
    RuntimeClassNotFound(String),
    #[error("hostPath: {0:?} is not an absolute path")]
    RelativeHostPath(String),
}

/// Resolves a pod's volume.
pub(crate) fn resolve(
    objects: &Objects,
    pod: &Pod,
    volume: &Volume,
) -> Result<ResolvedVolume, ResolveError> {
    let deferred = pod.deferred.contains(&volume.name);
    let (spec, read_only) = if let Some(source) = &volume.persistent_volume_claim {
        let claim = Name::new(&pod.name.namespace, &source.claim_name);
        (
            resolve_claim(objects, claim)?,
            source.read_only == Some(true),
        )
    } else if volume.ephemeral.is_some() {
        let claim = ephemeral_claim(pod, &volume.name);
        let found = objects
            .claims
            .get(&claim)
            .ok_or_else(|| ResolveError::ClaimNotFound(claim.clone()))?;
        if !is_owned(found, &pod.uid) {
            return Err(ResolveError::NotOwned(claim, pod.name.clone()));
        }
        (resolve_claim(objects, claim)?, false)
    } else if let Some(source) = &volume.csi {
        (
            inline_volume(pod, &volume.name, source)?,
            source.read_only == Some(true),
        )
    } else if volume.empty_dir.is_some() {
        return Ok(ResolvedVolume::EmptyDir);
    } else if let Some(source) = &volume.host_path {
        let path = PathBuf::from(&source.path);
        if !path.is_absolute() {
            return Err(ResolveError::RelativeHostPath(source.path.clone()));
        }
        return Ok(ResolvedVolume::HostPath(path));
    } else {
        return Err(ResolveError::UnsupportedKind);
    };
    let context = pod.spec.security_context.as_ref();
    let has_subpath = pod
        .containers()
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .any(|mount| {
            let subpaths = [&mount.sub_path, &mount.sub_path_expr];
            mount.name == volume.name
                && subpaths
                    .iter()
                    .any(|subpath| subpath.as_deref().is_some_and(|path| !path.is_empty()))
        });
    Ok(ResolvedVolume::Csi(Box::new(MountSpec {
        volume: spec,
        deferred,
        read_only,
        fs_group: context.and_then(|context| context.fs_group),
        change_policy: context.and_then(|context| context.fs_group_change_policy.clone()),
        runtime: runtime_socket(objects, pod)?,
        has_subpath,
    })))
}

/// Returns the name of the claim that is created for a pod's `ephemeral` volume.
pub(crate) fn ephemeral_claim(pod: &Pod, volume: &str) -> Name {
    let Name { namespace, name } = &pod.name;
    Name::new(namespace, &format!("{name}-{volume}"))
}

fn is_owned(claim: &PersistentVolumeClaim, uid: &str) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.uid == uid)
}

/// Returns the `fsMgmtSocket` of the pod's runtime class.
fn runtime_socket(objects: &Objects, pod: &Pod) -> Result<Option<PathBuf>, ResolveError> {
    let Some(class) = pod
        .spec
        .runtime_class_name
        .as_deref()
        .filter(|name| !name.is_empty())
    else {
        return Ok(None);
    };
    let found = objects.runtime_classes.get(class);
    let found = found.ok_or_else(|| ResolveError::RuntimeClassNotFound(class.to_owned()))?;
    Ok(found.fs_mgmt_socket.clone())
}

fn resolve_claim(objects: &Objects, name: Name) -> Result<VolumeSpec, ResolveError> {
    let claim = objects
        .claims
        .get(&name)
        .ok_or_else(|| ResolveError::ClaimNotFound(name.clone()))?;
    let bound = volume_of(claim).ok_or_else(|| ResolveError::ClaimNotBound(name.clone()))?;
    let volume = objects
        .volumes
        .get(bound)
        .ok_or_else(|| ResolveError::VolumeNotFound {
            claim: name.clone(),
            volume: bound.to_owned(),
        })?;
    if !is_bound(&name, claim, bound, volume) {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let other_claim = claim_of(volume)
            .filter(|_| compare_claim_ref(volume, &name, uid) == ClaimRef::OtherClaim);
        return Err(match other_claim {
            Some((other, _)) => ResolveError::BoundToOther(name, bound.to_owned(), other),
            None => ResolveError::ClaimNotBound(name),
        });
    }
    let class = storage_class(volume);
    let class = class.and_then(|class| objects.storage_classes.get(class));
    persistent_volume(
        bound,
        volume,
        Some(name),
        class.is_some_and(|class| class.allow_runtime_assisted_mount),
    )
}

/// Returns a volume's storage class, unless it is empty.
pub(crate) fn storage_class(volume: &PersistentVolume) -> Option<&str> {
    let class = volume.spec.as_ref()?.storage_class_name.as_deref();
    class.filter(|class| !class.is_empty())
}

fn persistent_volume(
    name: &str,
    volume: &PersistentVolume,
    claim: Option<Name>,
    allows_runtime: bool,
) -> Result<VolumeSpec, ResolveError> {
    let not_csi = || ResolveError::NotCsi(name.to_owned());
    let spec = volume.spec.as_ref().ok_or_else(not_csi)?;
    let csi: &CSIPersistentVolumeSource = spec.csi.as_ref().ok_or_else(not_csi)?;
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(ResolveError::RawBlock);
    }
    Ok(VolumeSpec {
        id: volume_id(name, &csi.driver, &csi.volume_handle)?,
        directory: name.to_owned(),
        lifecycle: Lifecycle::Persistent,
        fs_type: csi.fs_type.clone().unwrap_or_default(),
        mount_options: spec.mount_options.clone().unwrap_or_default(),
        attributes: csi.volume_attributes.clone().unwrap_or_default(),
        access_modes: spec.access_modes.clone().unwrap_or_default(),
        read_only: csi.read_only == Some(true),
        stage_secret: secret(csi.node_stage_secret_ref.as_ref()),
        publish_secret: secret(csi.node_publish_secret_ref.as_ref()),
        expand_secret: secret(csi.node_expand_secret_ref.as_ref()),
        claim,
        capacity: capacity(volume),
        allows_runtime,
    })
}

/// Returns a volume's `spec.capacity.storage` in bytes. `None` if it is missing or invalid.
pub(crate) fn capacity(volume: &PersistentVolume) -> Option<i64> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    crate::objects::quantity::bytes(&capacity.0).ok()
}

fn inline_volume(
    pod: &Pod,
    name: &str,
    source: &CSIVolumeSource,
) -> Result<VolumeSpec, ResolveError> {
    let secret = source.node_publish_secret_ref.as_ref();
    Ok(VolumeSpec {
        id: volume_id(name, &source.driver, &inline_handle(&pod.uid, name))?,
        directory: name.to_owned(),
        lifecycle: Lifecycle::Ephemeral,
        fs_type: source.fs_type.clone().unwrap_or_default(),
        mount_options: Vec::new(),
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        read_only: source.read_only == Some(true),
        stage_secret: None,
        publish_secret: secret.map(|secret| Name::new(&pod.name.namespace, &secret.name)),
        expand_secret: None,
        claim: None,
        capacity: None,
        allows_runtime: false,
    })
}

/// Returns an inline volume's handle. It is computed as in kubelet, and so doesn't change after a restart.
fn inline_handle(uid: &str, volume: &str) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("{uid}{volume}"));
    format!("csi-{}", hex::encode(digest))
}

/// Returns the ID of a volume. Checks the driver's name, because it becomes part of paths, and the handle.
fn volume_id(volume: &str, driver: &str, handle: &str) -> Result<VolumeId, ResolveError> {
    if !is_driver_name(driver) {
        return Err(ResolveError::InvalidDriver(
            volume.to_owned(),
            driver.to_owned(),
        ));
    }
    if handle.is_empty() {
        return Err(ResolveError::EmptyHandle(volume.to_owned()));
    }
    Ok(VolumeId {
        driver: driver.to_owned(),
        handle: handle.to_owned(),
    })
}

/// Returns the name of a referenced secret, unless it is empty.
pub(crate) fn secret(reference: Option<&SecretReference>) -> Option<Name> {
    let reference = reference?;
    let name = reference.name.as_deref().filter(|name| !name.is_empty())?;
    Some(Name::new(
        reference.namespace.as_deref().unwrap_or_default(),
        name,
    ))
}
