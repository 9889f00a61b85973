//! Chooses the volume of a claim, by the rules of kube-controller-manager's binder.

use std::collections::BTreeSet;
use std::sync::Arc;

use crust_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::request::ClaimRequest;
use super::{Notice, PlanInputs};
use crate::csi::DriverCapabilities;
use crate::events::EventType;
use crate::objects::{Name, StorageClass};
use crate::volumes::claim_ref::{ClaimRef, claim_of, compare_claim_ref, volume_of, was_bound};
use crate::volumes::spec::capacity;

/// The provisioner of storage classes whose volumes are created by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The next step of a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Binding<'o> {
    /// The claim and this volume are bound to each other.
    Bound(&'o str),
    /// Bind the claim to this volume.
    Bind(&'o str),
    /// Have a driver create a volume of a storage class.
    Provision(&'o str, &'o StorageClass),
    /// Wait. The event says for what.
    Wait(Notice),
}

/// Returns the `spec.claimRef` of a claim's volume.
pub(super) fn claim_reference(claim: &Name, uid: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": uid,
    })
}

/// Decides the next step of a claim. `taken` has the volumes that this plan gives to other claims.
pub(super) fn decide<'o>(
    inputs: &PlanInputs<'o>,
    taken: &BTreeSet<&str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
) -> Binding<'o> {
    let wait =
        |kind, reason, message| Binding::Wait(Notice::about_claim(kind, name, reason, message));
    let request = match ClaimRequest::from_claim(inputs.objects, claim) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("resources.requests.storage: {error}");
            return wait(EventType::Warning, "FailedBinding", message);
        }
    };
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if let Some(binding) = decide_named(inputs, taken, name, claim, &request) {
        return binding;
    }
    let volumes = inputs.objects.volumes.iter();
    let mut reserved = volumes.filter(|(_, volume)| {
        matches!(
            compare_claim_ref(volume, name, uid),
            ClaimRef::Prebound | ClaimRef::Claimed
        )
    });
    if let Some((volume_name, volume)) = reserved.next() {
        // A volume that refers to the claim's UID is bound even if the claim requests more by now.
        return match request.mismatch(volume) {
            Some(reason) if compare_claim_ref(volume, name, uid) == ClaimRef::Prebound => wait(
                EventType::Warning,
                "VolumeMismatch",
                mismatch(volume_name, reason),
            ),
            _ => Binding::Bind(volume_name),
        };
    }
    let class = request.class;
    let class = class.map(|class| (class, inputs.objects.storage_classes.get(class)));
    if let Some((_, Some(class))) = class
        && class.object.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && !inputs.is_used(name)
    {
        let message = "waiting for first consumer to be created before binding".to_owned();
        return wait(EventType::Normal, "WaitForFirstConsumer", message);
    }
    if claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.selector.is_some())
    {
        let message = "crustlet doesn't support selectors; hint: set volumeName".to_owned();
        return wait(EventType::Warning, "FailedBinding", message);
    }
    if let Some(volume) = smallest_match(inputs, taken, &request) {
        return Binding::Bind(volume);
    }
    match provisioner(inputs, class) {
        Ok((driver, class)) => Binding::Provision(driver, class),
        Err((kind, reason, message)) => wait(kind, reason, message),
    }
}

fn mismatch(volume: &str, reason: &str) -> String {
    format!("Cannot bind to requested volume \"{volume}\": {reason}")
}

/// Decides about a claim that names its volume. Returns `None` for any other claim.
fn decide_named<'o>(
    inputs: &PlanInputs<'o>,
    taken: &BTreeSet<&str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest<'_>,
) -> Option<Binding<'o>> {
    let volume = volume_of(claim)?;
    let warn = |reason, message| {
        Binding::Wait(Notice::about_claim(
            EventType::Warning,
            name,
            reason,
            message,
        ))
    };
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let Some((volume_name, found)) = inputs.objects.volumes.get_key_value(volume) else {
        return Some(if was_bound(claim) {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            warn("ClaimLost", message.to_owned())
        } else {
            let message = format!("volume \"{volume}\" not found; hint: add its manifest");
            warn("FailedBinding", message)
        });
    };
    Some(match compare_claim_ref(found, name, uid) {
        ClaimRef::Claimed if was_bound(claim) => Binding::Bound(volume_name),
        ClaimRef::Claimed => Binding::Bind(volume_name),
        ClaimRef::Unclaimed | ClaimRef::Prebound if !taken.contains(volume) => {
            match request.mismatch(found) {
                None => Binding::Bind(volume_name),
                Some(reason) => warn("VolumeMismatch", mismatch(volume_name, reason)),
            }
        }
        _ if was_bound(claim) => {
            let message = "Two claims are bound to the same volume, this one is bound incorrectly";
            warn("ClaimMisbound", message.to_owned())
        }
        _ => {
            let message = format!("volume \"{volume}\" already bound to a different claim.");
            warn("FailedBinding", message)
        }
    })
}

/// Returns the smallest matching volume without a claim.
fn smallest_match<'o>(
    inputs: &PlanInputs<'o>,
    taken: &BTreeSet<&str>,
    request: &ClaimRequest<'_>,
) -> Option<&'o str> {
    let volumes = inputs.objects.volumes.iter();
    let free = volumes.filter(|(name, volume)| {
        claim_of(volume).is_none()
            && !taken.contains(name.as_str())
            && request.mismatch(volume).is_none()
    });
    let smallest = free.min_by_key(|(_, volume)| capacity(volume).unwrap_or(i64::MAX));
    smallest.map(|(name, _)| name.as_str())
}

/// The type, the reason and the message of an event about a waiting claim.
type WaitReason = (EventType, &'static str, String);

/// Returns the driver that creates volumes of a storage class.
fn provisioner<'o>(
    inputs: &PlanInputs<'o>,
    class: Option<(&str, Option<&'o Arc<StorageClass>>)>,
) -> Result<(&'o str, &'o StorageClass), WaitReason> {
    let Some((name, class)) = class else {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return Err((EventType::Normal, "FailedBinding", message.to_owned()));
    };
    let provisioning_failed = |message| (EventType::Warning, "ProvisioningFailed", message);
    let class = class.ok_or_else(|| {
        provisioning_failed(format!(
            "storageclass \"{name}\" not found; hint: add its manifest"
        ))
    })?;
    let driver = class.object.provisioner.as_str();
    if driver == NO_PROVISIONER {
        let message = format!(
            "no persistent volumes available for this claim, and storageclass \"{name}\" doesn't create any"
        );
        return Err((EventType::Normal, "FailedBinding", message));
    }
    let Some(DriverCapabilities { controller, .. }) = inputs.drivers.get(driver) else {
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{driver}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        return Err((EventType::Normal, "ExternalProvisioning", message));
    };
    if !controller.has(Rpc::CreateDeleteVolume) {
        return Err(provisioning_failed(format!(
            "driver {driver} lacks the capability CREATE_DELETE_VOLUME of its controller service; hint: create a PersistentVolume by hand"
        )));
    }
    Ok((driver, class))
}
