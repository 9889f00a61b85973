//! The references between a claim and its volume, read in one way for binding and for mounting.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::objects::Name;
use crate::objects::manifest::DEFAULT_NAMESPACE;

/// The annotation of a claim that was bound once: without its volume it is lost.
pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// The claim that a volume refers to, as seen from one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimRef {
    /// No claim.
    Free,
    /// This claim, by its name alone, as in a manifest of the volume.
    Meant,
    /// This claim, by its name and UID.
    This,
    /// Another claim, which may be gone.
    Other,
}

/// Returns the claim's name and UID in a volume's `spec.claimRef`.
pub(crate) fn claim_of(volume: &PersistentVolume) -> Option<(Name, Option<&str>)> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let namespace = reference.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let name = reference.name.as_deref().unwrap_or_default();
    let uid = reference.uid.as_deref().filter(|it| !it.is_empty());
    Some((Name::new(namespace, name), uid))
}

/// `status.phase` of a volume whose claim is gone: it may be deleted from then on, and no claim gets it again.
pub(crate) const RELEASED: &str = "Released";

/// Returns whether a volume was released, after its claim had gone.
pub(crate) fn was_released(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    status.and_then(|it| it.phase.as_deref()) == Some(RELEASED)
}

/// Returns whom a volume refers to, as seen from the claim of this name and UID.
pub(crate) fn held(volume: &PersistentVolume, claim: &Name, uid: &str) -> ClaimRef {
    match claim_of(volume) {
        None => ClaimRef::Free,
        Some((named, None)) if named == *claim => ClaimRef::Meant,
        Some((named, Some(other))) if named == *claim && other == uid && !was_released(volume) => {
            ClaimRef::This
        }
        Some(_) => ClaimRef::Other,
    }
}

/// Returns whether a claim and a volume are bound to each other. A volume that names the claim without its UID isn't:
/// it hasn't been checked whether it fits.
pub(crate) fn is_bound(
    name: &Name,
    claim: &PersistentVolumeClaim,
    volume_name: &str,
    volume: &PersistentVolume,
) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    volume_of(claim) == Some(volume_name)
        && held(volume, name, uid) == ClaimRef::This
        && was_bound(claim)
}

/// `spec.volumeName`
pub(crate) fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|it| !it.is_empty())
}

/// Returns whether a claim was bound once.
pub(crate) fn was_bound(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|it| it.contains_key(BIND_COMPLETED))
}

/// Whether it is to go, and is no new pod's any more.
pub(crate) fn is_deleted(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some()
}
