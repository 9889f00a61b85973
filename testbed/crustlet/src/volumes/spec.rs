//! Resolves a pod's volume: its driver, its handle, and how the pod wants it mounted.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaim,
    SecretReference, Volume,
};
use serde::{Deserialize, Serialize};

use super::claim_ref::{ClaimRef, claim_of, held, is_bound, volume_of};
use crate::objects::manifest::is_driver;
use crate::objects::{Name, Objects, Pod};

/// A volume, whoever has it mounted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeId {
    /// Its driver's name.
    pub(crate) driver: String,
    /// `volume_id` of CSI's calls.
    pub(crate) handle: String,
}

/// kubelet's name for it.
impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }
}

/// Whether there is a volume before and after the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Lifecycle {
    /// A `PersistentVolume`.
    Persistent,
    /// In the pod's spec (CSI's inline volumes): it is made by its publication.
    Ephemeral,
}

impl Lifecycle {
    /// In `vol_data.json`, and of `CSIDriver`'s `volumeLifecycleModes`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "Persistent",
            Self::Ephemeral => "Ephemeral",
        }
    }
}

/// A volume of a driver's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VolumeSpec {
    /// The id of the volume.
    pub(crate) id: VolumeId,
    /// Its directory's name in a pod's: the `PersistentVolume`'s, or that of the pod's volume.
    pub(crate) directory: String,
    /// Whether there is a volume before and after the pod.
    pub(crate) lifecycle: Lifecycle,
    /// Empty is the driver's choice.
    pub(crate) fs_type: String,
    /// The mount options, as in `mount -o`.
    pub(crate) mount_options: Vec<String>,
    /// `volume_context` of CSI's calls.
    pub(crate) attributes: BTreeMap<String, String>,
    /// `ReadWriteOncePod`, …
    pub(crate) access_modes: Vec<String>,
    /// For all pods.
    pub(crate) read_only: bool,
    /// For `NodeStageVolume`.
    pub(crate) stage_secret: Option<Name>,
    /// For `NodePublishVolume`.
    pub(crate) publish_secret: Option<Name>,
    /// For `NodeExpandVolume`.
    pub(crate) expand_secret: Option<Name>,
    /// The claim that it is bound to.
    pub(crate) claim: Option<Name>,
    /// `spec.capacity` of the `PersistentVolume`, in bytes.
    pub(crate) capacity: Option<i64>,
    /// `allowRuntimeAssistedMount` of its storage class.
    pub(crate) allows_runtime: bool,
}

impl VolumeSpec {
    /// Whether it is for one pod at a time (KEP-2485).
    pub(crate) fn is_exclusive(&self) -> bool {
        let mut modes = self.access_modes.iter();
        modes.any(|mode| mode == "ReadWriteOncePod")
    }
}

/// A volume as a pod wants it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MountSpec {
    pub(crate) volume: VolumeSpec,
    /// `deferFSMount`
    pub(crate) deferred: bool,
    /// For this pod.
    pub(crate) read_only: bool,
    /// The pod's fsGroup.
    pub(crate) fs_group: Option<i64>,
    /// `Always` or `OnRootMismatch`, where the pod says so.
    pub(crate) change_policy: Option<String>,
    /// The socket of the pod's runtime handler (KEP-2857's earlier draft).
    pub(crate) runtime: Option<PathBuf>,
    /// Whether a container of the pod's mounts a part of it.
    pub(crate) has_subpath: bool,
}

/// A volume of a pod's spec, resolved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Resolved {
    /// A driver's.
    Csi(Box<MountSpec>),
    /// A directory of the pod's own.
    EmptyDir,
    /// The host's.
    HostPath(PathBuf),
}

/// A pod's volume can't be told what it is; not yet, or never.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// There is no such claim.
    #[error("persistentvolumeclaim {0} not found; hint: give its manifest")]
    NoClaim(Name),
    /// The claim has no volume.
    #[error("persistentvolumeclaim {0} is not bound yet")]
    Unbound(Name),
    /// It has one that there isn't.
    #[error(
        "persistentvolumeclaim {claim}: persistentvolume {volume} not found; hint: give its manifest"
    )]
    NoVolume {
        claim: Name,
        /// The volume that it names.
        volume: String,
    },
    /// It has one that another claim has.
    #[error("persistentvolumeclaim {0}: persistentvolume {1} is bound to {2}")]
    Others(Name, String, Name),
    /// It isn't a CSI driver's.
    #[error("persistentvolume {0} is no CSI driver's")]
    NotCsi(String),
    /// A claim by the name that an ephemeral volume's has.
    #[error(
        "persistentvolumeclaim {0} was not created for pod {1}; hint: its metadata.ownerReferences names that one"
    )]
    NotOwned(Name, Name),
    /// A raw device.
    #[error("volumeMode Block: crustlet has no raw block volumes; hint: volumeMode: Filesystem")]
    Block,
    /// `ConfigMaps`, Secrets, NFS.
    #[error(
        "crustlet has no volumes of this kind; hint: persistentVolumeClaim, ephemeral, csi, emptyDir or hostPath"
    )]
    Kind,
    /// It would be part of a path.
    #[error("persistentvolume {0}: {1:?} is no name of a driver")]
    Driver(String, String),
    /// All of them would be one volume.
    #[error("persistentvolume {0}: csi.volumeHandle is empty; hint: the driver's id of the volume")]
    Handle(String),
    /// There is no such class.
    #[error("runtimeclass {0} not found; hint: give its manifest")]
    NoRuntimeClass(String),
    /// A path that isn't absolute.
    #[error("hostPath: {0:?} is no absolute path")]
    HostPath(String),
}

/// Resolves a pod's volume by the objects that exist.
pub(crate) fn resolve(
    objects: &Objects,
    pod: &Pod,
    volume: &Volume,
) -> Result<Resolved, Unresolved> {
    let deferred = pod.deferred.contains(&volume.name);
    let (spec, read_only) = if let Some(source) = &volume.persistent_volume_claim {
        let claim = Name::new(&pod.name.namespace, &source.claim_name);
        (claimed(objects, claim)?, source.read_only == Some(true))
    } else if volume.ephemeral.is_some() {
        let claim = ephemeral_claim(pod, &volume.name);
        let found = objects
            .claims
            .get(&claim)
            .ok_or_else(|| Unresolved::NoClaim(claim.clone()))?;
        if !is_owned(found, &pod.uid) {
            return Err(Unresolved::NotOwned(claim, pod.name.clone()));
        }
        (claimed(objects, claim)?, false)
    } else if let Some(source) = &volume.csi {
        (
            inline(pod, &volume.name, source)?,
            source.read_only == Some(true),
        )
    } else if volume.empty_dir.is_some() {
        return Ok(Resolved::EmptyDir);
    } else if let Some(source) = &volume.host_path {
        let path = PathBuf::from(&source.path);
        if !path.is_absolute() {
            return Err(Unresolved::HostPath(source.path.clone()));
        }
        return Ok(Resolved::HostPath(path));
    } else {
        return Err(Unresolved::Kind);
    };
    let context = pod.spec.security_context.as_ref();
    let has_subpath = pod
        .containers()
        .flat_map(|it| it.volume_mounts.iter().flatten())
        .any(|mount| {
            let parts = [&mount.sub_path, &mount.sub_path_expr];
            mount.name == volume.name
                && parts
                    .iter()
                    .any(|it| it.as_deref().is_some_and(|it| !it.is_empty()))
        });
    Ok(Resolved::Csi(Box::new(MountSpec {
        volume: spec,
        deferred,
        read_only,
        fs_group: context.and_then(|it| it.fs_group),
        change_policy: context.and_then(|it| it.fs_group_change_policy.clone()),
        runtime: runtime(objects, pod)?,
        has_subpath,
    })))
}

/// The claim that is made of a pod's `ephemeral` volume.
pub(crate) fn ephemeral_claim(pod: &Pod, volume: &str) -> Name {
    let Name { namespace, name } = &pod.name;
    Name::new(namespace, &format!("{name}-{volume}"))
}

fn is_owned(claim: &PersistentVolumeClaim, uid: &str) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.uid == uid)
}

fn runtime(objects: &Objects, pod: &Pod) -> Result<Option<PathBuf>, Unresolved> {
    let Some(class) = pod
        .spec
        .runtime_class_name
        .as_deref()
        .filter(|it| !it.is_empty())
    else {
        return Ok(None);
    };
    let found = objects.runtime_classes.get(class);
    let found = found.ok_or_else(|| Unresolved::NoRuntimeClass(class.to_owned()))?;
    Ok(found.fs_mgmt_socket.clone())
}

fn claimed(objects: &Objects, name: Name) -> Result<VolumeSpec, Unresolved> {
    let claim = objects
        .claims
        .get(&name)
        .ok_or_else(|| Unresolved::NoClaim(name.clone()))?;
    let bound = volume_of(claim).ok_or_else(|| Unresolved::Unbound(name.clone()))?;
    let volume = objects
        .volumes
        .get(bound)
        .ok_or_else(|| Unresolved::NoVolume {
            claim: name.clone(),
            volume: bound.to_owned(),
        })?;
    if !is_bound(&name, claim, bound, volume) {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let holder = claim_of(volume).filter(|_| held(volume, &name, uid) == ClaimRef::Other);
        return Err(match holder {
            Some((other, _)) => Unresolved::Others(name, bound.to_owned(), other),
            None => Unresolved::Unbound(name),
        });
    }
    let class = storage_class(volume);
    let class = class.and_then(|class| objects.storage_classes.get(class));
    persistent(
        bound,
        volume,
        Some(name),
        class.is_some_and(|it| it.allow_runtime_assisted_mount),
    )
}

/// The class that a volume is of.
pub(crate) fn storage_class(volume: &PersistentVolume) -> Option<&str> {
    let class = volume.spec.as_ref()?.storage_class_name.as_deref();
    class.filter(|it| !it.is_empty())
}

fn persistent(
    name: &str,
    volume: &PersistentVolume,
    claim: Option<Name>,
    allows_runtime: bool,
) -> Result<VolumeSpec, Unresolved> {
    let not_csi = || Unresolved::NotCsi(name.to_owned());
    let spec = volume.spec.as_ref().ok_or_else(not_csi)?;
    let csi: &CSIPersistentVolumeSource = spec.csi.as_ref().ok_or_else(not_csi)?;
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(Unresolved::Block);
    }
    Ok(VolumeSpec {
        id: id(name, &csi.driver, &csi.volume_handle)?,
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

/// `spec.capacity.storage`, in bytes.
pub(crate) fn capacity(volume: &PersistentVolume) -> Option<i64> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    crate::objects::quantity::bytes(&capacity.0).ok()
}

fn inline(pod: &Pod, name: &str, source: &CSIVolumeSource) -> Result<VolumeSpec, Unresolved> {
    let secret = source.node_publish_secret_ref.as_ref();
    Ok(VolumeSpec {
        id: id(name, &source.driver, &inline_handle(&pod.uid, name))?,
        directory: name.to_owned(),
        lifecycle: Lifecycle::Ephemeral,
        fs_type: source.fs_type.clone().unwrap_or_default(),
        mount_options: Vec::new(),
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        read_only: source.read_only == Some(true),
        stage_secret: None,
        publish_secret: secret.map(|it| Name::new(&pod.name.namespace, &it.name)),
        expand_secret: None,
        claim: None,
        capacity: None,
        allows_runtime: false,
    })
}

/// An inline volume's id, as kubelet makes it: the same at each restart.
fn inline_handle(uid: &str, volume: &str) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("{uid}{volume}"));
    format!("csi-{}", hex::encode(digest))
}

/// A driver's name becomes part of paths.
fn id(volume: &str, driver: &str, handle: &str) -> Result<VolumeId, Unresolved> {
    if !is_driver(driver) {
        return Err(Unresolved::Driver(volume.to_owned(), driver.to_owned()));
    }
    if handle.is_empty() {
        return Err(Unresolved::Handle(volume.to_owned()));
    }
    Ok(VolumeId {
        driver: driver.to_owned(),
        handle: handle.to_owned(),
    })
}

/// A Secret that a volume names.
pub(crate) fn secret(reference: Option<&SecretReference>) -> Option<Name> {
    let reference = reference?;
    let name = reference.name.as_deref().filter(|it| !it.is_empty())?;
    Some(Name::new(
        reference.namespace.as_deref().unwrap_or_default(),
        name,
    ))
}
