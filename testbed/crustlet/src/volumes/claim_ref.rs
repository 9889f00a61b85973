//! The references between claims and volumes. Binding and mounting read them in the same way.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::objects::Name;
use crate::objects::manifest::DEFAULT_NAMESPACE;

/// The annotation of a claim that was bound once. If its volume is missing, such a claim is lost, not pending.
pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// A volume's `spec.claimRef`, compared with one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimRef {
    /// There is no claimRef.
    Unclaimed,
    /// The claimRef has the claim's name and no UID: the volume is pre-bound to the claim by its manifest.
    Prebound,
    /// The claimRef has the claim's name and UID.
    Claimed,
    /// The claimRef is of another claim, which may be gone.
    OtherClaim,
}

/// Returns the name and UID of the claim in a volume's `spec.claimRef`.
pub(crate) fn claim_of(volume: &PersistentVolume) -> Option<(Name, Option<&str>)> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let namespace = reference.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let name = reference.name.as_deref().unwrap_or_default();
    let uid = reference.uid.as_deref().filter(|uid| !uid.is_empty());
    Some((Name::new(namespace, name), uid))
}

/// The `status.phase` of a volume whose claim is gone. Such a volume may be deleted, and no claim gets it again.
pub(crate) const RELEASED: &str = "Released";

/// Returns whether a volume was released when its claim was deleted.
pub(crate) fn was_released(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some(RELEASED)
}

/// Compares a volume's `spec.claimRef` with the name and UID of a claim.
pub(crate) fn compare_claim_ref(volume: &PersistentVolume, claim: &Name, uid: &str) -> ClaimRef {
    match claim_of(volume) {
        None => ClaimRef::Unclaimed,
        Some((named, None)) if named == *claim => ClaimRef::Prebound,
        Some((named, Some(other))) if named == *claim && other == uid && !was_released(volume) => {
            ClaimRef::Claimed
        }
        Some(_) => ClaimRef::OtherClaim,
    }
}

/// Returns whether a claim and a volume are bound to each other. A pre-bound volume isn't bound: whether it satisfies
/// the claim has not been checked yet.
pub(crate) fn is_bound(
    name: &Name,
    claim: &PersistentVolumeClaim,
    volume_name: &str,
    volume: &PersistentVolume,
) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    volume_of(claim) == Some(volume_name)
        && compare_claim_ref(volume, name, uid) == ClaimRef::Claimed
        && was_bound(claim)
}

/// Returns the `spec.volumeName` of a claim, unless it is empty.
pub(crate) fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Returns whether a claim has ever been bound.
pub(crate) fn was_bound(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(BIND_COMPLETED))
}

/// Returns whether a claim is being deleted. New pods can't use it any more.
pub(crate) fn is_deleted(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some()
}
