//! The request of a claim for a volume, and its storage class.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
};

use crate::objects::quantity::{QuantityError, bytes};
use crate::objects::{Objects, StorageClass};
use crate::volumes::spec::{capacity, storage_class};

/// The request of a claim. It decides which volume is chosen or created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimRequest<'c> {
    /// `resources.requests.storage` in bytes. 0 if the claim doesn't have it.
    pub(super) bytes: i64,
    /// The access modes. The volume must have all of them.
    pub(super) access_modes: &'c [String],
    /// Whether the claim is for a raw block volume.
    pub(super) is_block_volume: bool,
    /// The storage class, or the default class if the claim doesn't name one.
    pub(super) class: Option<&'c str>,
}

impl<'c> ClaimRequest<'c> {
    pub(super) fn from_claim(
        objects: &'c Objects,
        claim: &'c PersistentVolumeClaim,
    ) -> Result<Self, QuantityError> {
        let spec = claim.spec.as_ref();
        Ok(Self {
            bytes: requested(claim)?,
            access_modes: spec
                .and_then(|spec| spec.access_modes.as_deref())
                .unwrap_or(&[]),
            is_block_volume: is_block(spec.and_then(|spec| spec.volume_mode.as_deref())),
            class: spec.and_then(|spec| class_of(objects, spec)),
        })
    }

    /// Returns why a volume doesn't match, in the words of kube-controller-manager. `None` if it matches.
    pub(super) fn mismatch(&self, volume: &PersistentVolume) -> Option<&'static str> {
        let spec = volume.spec.as_ref();
        let modes = spec
            .and_then(|spec| spec.access_modes.as_deref())
            .unwrap_or(&[]);
        if capacity(volume).is_some_and(|capacity| capacity < self.bytes) {
            Some("requested PV is too small")
        } else if storage_class(volume) != self.class {
            Some("storageClassName does not match")
        } else if is_block(spec.and_then(|spec| spec.volume_mode.as_deref()))
            != self.is_block_volume
        {
            Some("incompatible volumeMode")
        } else if !self.access_modes.iter().all(|mode| modes.contains(mode)) {
            Some("incompatible accessMode")
        } else {
            None
        }
    }
}

/// Returns a claim's `resources.requests.storage` in bytes. 0 if the claim doesn't have it.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Result<i64, QuantityError> {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let storage = resources.and_then(|resources| resources.requests.as_ref()?.get("storage"));
    storage.map_or(Ok(0), |storage| bytes(&storage.0))
}

fn is_block(mode: Option<&str>) -> bool {
    mode == Some("Block")
}

/// The annotation that marks the default storage class with the value `true`.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Returns the storage class of a claim: the class that the claim names, the class of its volume, or the default class.
/// A claim that names `""` has no class.
pub(crate) fn class_of<'o>(
    objects: &'o Objects,
    claim: &'o PersistentVolumeClaimSpec,
) -> Option<&'o str> {
    let bound = claim.volume_name.as_deref().filter(|name| !name.is_empty());
    match (&claim.storage_class_name, bound) {
        (Some(class), _) => Some(class.as_str()).filter(|class| !class.is_empty()),
        (None, Some(bound)) => storage_class(objects.volumes.get(bound)?),
        (None, None) => default_class(objects),
    }
}

/// Returns the default class. If several classes are marked as default, it is the first by name.
fn default_class(objects: &Objects) -> Option<&str> {
    let is_default = |class: &StorageClass| {
        let annotations = class.object.metadata.annotations.as_ref();
        annotations
            .and_then(|annotations| annotations.get(DEFAULT_CLASS))
            .map(String::as_str)
            == Some("true")
    };
    let mut classes = objects.storage_classes.iter();
    let (name, _) = classes.find(|(_, class)| is_default(class))?;
    Some(name)
}
