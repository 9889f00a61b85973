//! Releases and deletes volumes whose claims are gone.

use std::path::PathBuf;

use crust_proto::csi::v1::DeleteVolumeRequest;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;

use super::provision::DELETION_SECRET;
use super::{ClaimStep, Notice, PlanInputs, RecordUpdate, Records};
use crate::events::EventType;
use crate::objects::{Kind, Name};
use crate::volumes::claim_ref::{RELEASED, claim_of, was_released};
use crate::volumes::spec::VolumeId;

const FAILED: &str = "VolumeFailedDelete";

/// `DeleteVolume` for a provisioned volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeleteVolume {
    /// The name of the `PersistentVolume`.
    pub(crate) volume: String,
    pub(crate) driver: String,
    /// The request without the secrets.
    pub(crate) request: DeleteVolumeRequest,
    /// The Secret whose data is sent as secrets.
    pub(crate) secret: Option<Name>,
}

impl DeleteVolume {
    pub(crate) fn id(&self) -> VolumeId {
        VolumeId {
            driver: self.driver.clone(),
            handle: self.request.volume_id.clone(),
        }
    }

    /// Returns the step to carry out after a success.
    pub(crate) fn succeeded(&self) -> ClaimStep {
        ClaimStep::Forget(Kind::PersistentVolume, Name::new("", &self.volume))
    }

    /// Returns the event to emit after an error.
    pub(crate) fn failed(&self, reason: &str) -> Notice {
        let volume = Name::new("", &self.volume);
        let object = (Kind::PersistentVolume, &volume);
        Notice::new(EventType::Warning, object, FAILED, reason.to_owned())
    }
}

/// Returns whether the claim of a volume is gone.
pub(super) fn is_released(records: &Records, volume: &PersistentVolume) -> bool {
    match claim_of(volume) {
        Some((claim, Some(uid))) => was_released(volume) || records.uid(&claim) != Some(uid),
        _ => false,
    }
}

/// Returns whether another `PersistentVolume` refers to the same storage. If so, the storage must be kept.
fn is_shared(inputs: &PlanInputs<'_>, name: &str, id: &VolumeId) -> bool {
    let mut others = inputs
        .objects
        .volumes
        .iter()
        .filter(|(other_name, _)| *other_name != name);
    others.any(|(_, other)| {
        let source = other.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        source.is_some_and(|source| source.driver == id.driver && source.volume_handle == id.handle)
    })
}

/// The next step of a provisioned volume.
#[derive(Debug)]
pub(super) enum Reclaim {
    /// Leave the volume as it is.
    Keep,
    /// Mark the volume as released, so that no claim gets it again. The record is written before the driver is asked to
    /// delete the volume.
    Release(RecordUpdate),
    /// Have the driver delete the volume.
    Delete(DeleteVolume),
    /// Remove the record of a volume that the user has deleted, but keep the storage.
    Forget(Notice),
    /// Wait until the user does something.
    Blocked(Notice),
    /// Wait for the driver or its capabilities.
    Wait(Notice),
}

/// Decides the next step of a provisioned volume. Its reclaim policy decides whether it is deleted or kept once its
/// claim is gone and no pod on this node uses it.
pub(super) fn next(inputs: &PlanInputs<'_>, name: &str, volume: &PersistentVolume) -> Reclaim {
    let is_deleted = volume.metadata.deletion_timestamp.is_some();
    let spec = volume.spec.as_ref();
    let Some((spec, source)) = spec.and_then(|spec| Some((spec, spec.csi.as_ref()?))) else {
        return Reclaim::Keep;
    };
    let id = VolumeId {
        driver: source.driver.clone(),
        handle: source.volume_handle.clone(),
    };
    let notice = |kind, reason, message| {
        let object = (Kind::PersistentVolume, &Name::new("", name));
        Notice::new(kind, object, reason, message)
    };
    if !is_released(inputs.records, volume) {
        let holder = claim_of(volume).filter(|_| is_deleted);
        return holder.map_or(Reclaim::Keep, |(claim, _)| {
            let message = format!(
                "the volume is deleted when persistentvolumeclaim {claim}, which uses it, is gone; hint: delete the claim"
            );
            Reclaim::Blocked(notice(EventType::Normal, "VolumeInUse", message))
        });
    }
    if !was_released(volume) {
        let patch = json!({"status": {"phase": RELEASED}});
        return Reclaim::Release(RecordUpdate::volume(name, patch));
    }
    let is_shared = is_shared(inputs, name, &id);
    let is_policy_delete = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    if inputs.actual.volumes.contains_key(&id) || !(is_deleted || is_policy_delete && !is_shared) {
        return Reclaim::Keep;
    }
    if let Some(reason) = deletion_blocker(inputs, name, &id) {
        return Reclaim::Blocked(notice(EventType::Warning, FAILED, reason));
    }
    let VolumeId { driver, handle } = &id;
    if !is_policy_delete || is_shared {
        let message =
            format!("the PersistentVolume is removed; driver {driver} keeps its data as {handle}");
        return Reclaim::Forget(notice(EventType::Normal, "VolumeKept", message));
    }
    let Some(capabilities) = inputs.drivers.get(driver) else {
        let reason = format!("waiting for driver {driver} to delete the volume");
        return Reclaim::Wait(notice(EventType::Warning, FAILED, reason));
    };
    if !capabilities.controller.has(Rpc::CreateDeleteVolume) {
        let reason = format!(
            "driver {driver} lacks the capability CREATE_DELETE_VOLUME of its controller service, so it can't delete volume {handle}; hint: use a version of the driver that has the capability, or set persistentVolumeReclaimPolicy: Retain"
        );
        return Reclaim::Wait(notice(EventType::Warning, FAILED, reason));
    }
    Reclaim::Delete(delete_call(name, volume, id))
}

/// Returns why a volume must not be deleted or forgotten now, if there is a reason.
fn deletion_blocker(inputs: &PlanInputs<'_>, name: &str, id: &VolumeId) -> Option<String> {
    if let Some(unreadable_manifest) = inputs.unreadable_manifest {
        return Some(unreadable_manifest.to_owned());
    }
    // The directory of a volume in a pod is named after the PersistentVolume.
    let is_of_volume = |path: &&PathBuf| {
        **path == inputs.layout.staged(id)
            || path.file_name().is_some_and(|file_name| file_name == name)
    };
    let path = inputs
        .unreadable_directories
        .iter()
        .find(is_of_volume)?
        .display();
    Some(format!(
        "{path} may be a directory of this volume, but its record can't be read; the directory is cleaned up when its pod has ended; hint: see crustlet's log if that fails"
    ))
}

fn delete_call(name: &str, volume: &PersistentVolume, id: VolumeId) -> DeleteVolume {
    let annotations = volume.metadata.annotations.as_ref();
    let secret =
        DELETION_SECRET.map(|key| annotations.and_then(|annotations| annotations.get(key)));
    DeleteVolume {
        volume: name.to_owned(),
        request: DeleteVolumeRequest {
            volume_id: id.handle,
            ..DeleteVolumeRequest::default()
        },
        secret: match secret {
            [Some(namespace), Some(secret)] => Some(Name::new(namespace, secret)),
            _ => None,
        },
        driver: id.driver,
    }
}
