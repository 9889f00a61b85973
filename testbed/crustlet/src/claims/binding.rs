//! Chooses the volume of a claim, by the rules of kube-controller-manager's binder.

use std::collections::BTreeSet;
use std::sync::Arc;

use crust_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::request::ClaimRequest;
use super::{Notice, World};
use crate::csi::DriverCapabilities;
use crate::events::EventType;
use crate::objects::{Name, StorageClass};
use crate::volumes::claim_ref::{ClaimRef, claim_of, compare_claim_ref, volume_of, was_bound};
use crate::volumes::spec::capacity;

/// The provisioner of classes whose volumes are made by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The next step of a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Binding<'o> {
    /// The claim and a volume have each other.
    Bound(&'o str),
    /// They are to have.
    Bind(&'o str),
    /// A volume is to be made by a driver, for a class.
    Provision(&'o str, &'o StorageClass),
    /// Nothing yet.
    Wait(Notice),
}

/// `spec.claimRef` of a claim's volume.
pub(super) fn reference(claim: &Name, uid: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": uid,
    })
}

/// Decides the next step of a claim. `taken` has the volumes that other claims get at this moment.
pub(super) fn decide<'o>(
    world: &World<'o>,
    taken: &BTreeSet<&str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
) -> Binding<'o> {
    let wait = |kind, reason, message| Binding::Wait(Notice::of_claim(kind, name, reason, message));
    let wanted = match ClaimRequest::of(world.objects, claim) {
        Ok(wanted) => wanted,
        Err(error) => {
            let message = format!("resources.requests.storage: {error}");
            return wait(EventType::Warning, "FailedBinding", message);
        }
    };
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if let Some(binding) = to_named(world, taken, name, claim, &wanted) {
        return binding;
    }
    let volumes = world.objects.volumes.iter();
    let mut meant = volumes.filter(|(_, it)| {
        matches!(
            compare_claim_ref(it, name, uid),
            ClaimRef::Prebound | ClaimRef::Claimed
        )
    });
    if let Some((volume_name, volume)) = meant.next() {
        // One that it has already may have been made before the claim asked for more.
        return match wanted.mismatch(volume) {
            Some(why) if compare_claim_ref(volume, name, uid) == ClaimRef::Prebound => wait(
                EventType::Warning,
                "VolumeMismatch",
                mismatch(volume_name, why),
            ),
            _ => Binding::Bind(volume_name),
        };
    }
    let class = wanted.class;
    let class = class.map(|it| (it, world.objects.storage_classes.get(it)));
    if let Some((_, Some(class))) = class
        && class.object.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && !world.is_used(name)
    {
        let message = "waiting for first consumer to be created before binding".to_owned();
        return wait(EventType::Normal, "WaitForFirstConsumer", message);
    }
    if claim.spec.as_ref().is_some_and(|it| it.selector.is_some()) {
        let message = "crustlet looks for no volumes by selector; hint: volumeName".to_owned();
        return wait(EventType::Warning, "FailedBinding", message);
    }
    if let Some(volume) = best(world, taken, &wanted) {
        return Binding::Bind(volume);
    }
    match provisioner(world, class) {
        Ok((driver, class)) => Binding::Provision(driver, class),
        Err((kind, reason, message)) => wait(kind, reason, message),
    }
}

fn mismatch(volume: &str, why: &str) -> String {
    format!("Cannot bind to requested volume \"{volume}\": {why}")
}

/// Decides about a claim that names its volume; `None` for any other.
fn to_named<'o>(
    world: &World<'o>,
    taken: &BTreeSet<&str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
    wanted: &ClaimRequest<'_>,
) -> Option<Binding<'o>> {
    let volume = volume_of(claim)?;
    let warn = |reason, message| {
        Binding::Wait(Notice::of_claim(EventType::Warning, name, reason, message))
    };
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let Some((volume_name, found)) = world.objects.volumes.get_key_value(volume) else {
        return Some(if was_bound(claim) {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            warn("ClaimLost", message.to_owned())
        } else {
            let message = format!("volume \"{volume}\" not found; hint: give its manifest");
            warn("FailedBinding", message)
        });
    };
    Some(match compare_claim_ref(found, name, uid) {
        ClaimRef::Claimed if was_bound(claim) => Binding::Bound(volume_name),
        ClaimRef::Claimed => Binding::Bind(volume_name),
        ClaimRef::Unclaimed | ClaimRef::Prebound if !taken.contains(volume) => {
            match wanted.mismatch(found) {
                None => Binding::Bind(volume_name),
                Some(why) => warn("VolumeMismatch", mismatch(volume_name, why)),
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

/// Returns the smallest volume that fits, of those without a claim.
fn best<'o>(
    world: &World<'o>,
    taken: &BTreeSet<&str>,
    wanted: &ClaimRequest<'_>,
) -> Option<&'o str> {
    let volumes = world.objects.volumes.iter();
    let free = volumes.filter(|(name, volume)| {
        claim_of(volume).is_none()
            && !taken.contains(name.as_str())
            && wanted.mismatch(volume).is_none()
    });
    let smallest = free.min_by_key(|(_, volume)| capacity(volume).unwrap_or(i64::MAX));
    smallest.map(|(name, _)| name.as_str())
}

type Refused = (EventType, &'static str, String);

/// Returns the driver that makes volumes of a class.
fn provisioner<'o>(
    world: &World<'o>,
    class: Option<(&str, Option<&'o Arc<StorageClass>>)>,
) -> Result<(&'o str, &'o StorageClass), Refused> {
    let Some((name, class)) = class else {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return Err((EventType::Normal, "FailedBinding", message.to_owned()));
    };
    let failed = |message| (EventType::Warning, "ProvisioningFailed", message);
    let class = class.ok_or_else(|| {
        failed(format!(
            "storageclass \"{name}\" not found; hint: give its manifest"
        ))
    })?;
    let driver = class.object.provisioner.as_str();
    if driver == NO_PROVISIONER {
        let message = format!(
            "no persistent volumes available for this claim, and storageclass \"{name}\" makes none"
        );
        return Err((EventType::Normal, "FailedBinding", message));
    }
    let Some(DriverCapabilities { controller, .. }) = world.drivers.get(driver) else {
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{driver}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        return Err((EventType::Normal, "ExternalProvisioning", message));
    };
    if !controller.has(Rpc::CreateDeleteVolume) {
        return Err(failed(format!(
            "driver {driver} lacks the capability CREATE_DELETE_VOLUME of its controller service; hint: write a PersistentVolume"
        )));
    }
    Ok((driver, class))
}
