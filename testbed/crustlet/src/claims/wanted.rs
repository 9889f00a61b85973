//! What a claim asks of a volume.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::class;
use crate::objects::Objects;
use crate::objects::quantity::{NotAQuantity, bytes};
use crate::volumes::spec::{capacity, storage_class};

/// By these a volume is chosen, or made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted<'c> {
    /// `resources.requests.storage`; 0 where it doesn't say.
    pub(super) bytes: i64,
    /// All of them.
    pub(super) access_modes: &'c [String],
    /// Whether as a raw device.
    pub(super) block: bool,
    /// Of which class.
    pub(super) class: Option<&'c str>,
}

impl<'c> Wanted<'c> {
    /// Of a claim.
    pub(super) fn of(
        objects: &'c Objects,
        claim: &'c PersistentVolumeClaim,
    ) -> Result<Self, NotAQuantity> {
        let spec = claim.spec.as_ref();
        Ok(Self {
            bytes: requested(claim)?,
            access_modes: spec
                .and_then(|it| it.access_modes.as_deref())
                .unwrap_or(&[]),
            block: is_block(spec.and_then(|it| it.volume_mode.as_deref())),
            class: spec.and_then(|it| class::of(objects, it)),
        })
    }

    /// What speaks against a volume, in Kubernetes' words.
    pub(super) fn mismatch(&self, volume: &PersistentVolume) -> Option<&'static str> {
        let spec = volume.spec.as_ref();
        let modes = spec
            .and_then(|it| it.access_modes.as_deref())
            .unwrap_or(&[]);
        if capacity(volume).is_some_and(|it| it < self.bytes) {
            Some("requested PV is too small")
        } else if storage_class(volume) != self.class {
            Some("storageClassName does not match")
        } else if is_block(spec.and_then(|it| it.volume_mode.as_deref())) != self.block {
            Some("incompatible volumeMode")
        } else if !self.access_modes.iter().all(|it| modes.contains(it)) {
            Some("incompatible accessMode")
        } else {
            None
        }
    }
}

/// `resources.requests.storage`; 0 where it doesn't say.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Result<i64, NotAQuantity> {
    let resources = claim.spec.as_ref().and_then(|it| it.resources.as_ref());
    let storage = resources.and_then(|it| it.requests.as_ref()?.get("storage"));
    storage.map_or(Ok(0), |it| bytes(&it.0))
}

fn is_block(mode: Option<&str>) -> bool {
    mode == Some("Block")
}
