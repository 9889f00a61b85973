//! Reclaims volumes whose claims are gone.

use std::path::PathBuf;

use crust_proto::csi::v1::DeleteVolumeRequest;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;

use super::provision::DELETION_SECRET;
use super::{Notice, Records, Step, World, Write};
use crate::events::EventType;
use crate::objects::{Kind, Name};
use crate::volumes::claim_ref::{RELEASED, claim_of, was_released};
use crate::volumes::spec::VolumeId;

const FAILED: &str = "VolumeFailedDelete";

/// A volume that is to be destroyed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delete {
    /// The `PersistentVolume`.
    pub(crate) volume: String,
    pub(crate) driver: String,
    /// The request, without the secrets.
    pub(crate) request: DeleteVolumeRequest,
    /// The Secret with the secrets.
    pub(crate) secret: Option<Name>,
}

impl Delete {
    /// Returns the id of the volume.
    pub(crate) fn id(&self) -> VolumeId {
        VolumeId {
            driver: self.driver.clone(),
            handle: self.request.volume_id.clone(),
        }
    }

    /// Returns the step after the deletion.
    pub(crate) fn done(&self) -> Step {
        Step::Forget(Kind::PersistentVolume, Name::new("", &self.volume))
    }

    /// To be told where it isn't.
    pub(crate) fn failed(&self, why: &str) -> Notice {
        let volume = Name::new("", &self.volume);
        let of = (Kind::PersistentVolume, &volume);
        Notice::new(EventType::Warning, of, FAILED, why.to_owned())
    }
}

/// Whether the claim that had a volume is gone.
pub(super) fn is_released(records: &Records, volume: &PersistentVolume) -> bool {
    match claim_of(volume) {
        Some((claim, Some(uid))) => was_released(volume) || records.uid(&claim) != Some(uid),
        _ => false,
    }
}

/// Whether another `PersistentVolume` has the same storage: somebody has written it to keep that.
fn is_anothers(world: &World<'_>, name: &str, id: &VolumeId) -> bool {
    let mut others = world.objects.volumes.iter().filter(|(it, _)| *it != name);
    others.any(|(_, other)| {
        let source = other.spec.as_ref().and_then(|it| it.csi.as_ref());
        source.is_some_and(|it| it.driver == id.driver && it.volume_handle == id.handle)
    })
}

/// The next step of a volume that was made here.
#[derive(Debug)]
pub(super) enum Reclaim {
    /// Nothing.
    Keep,
    /// Release it, so that no claim gets it again. That is on the disk before the driver is asked to delete it.
    Release(Write),
    /// The driver is asked.
    Delete(Delete),
    /// Somebody has deleted it, and what is stored is to be kept: it isn't known any more.
    Forget(Notice),
    /// Nothing yet, and nobody here can hasten it.
    Blocked(Notice),
    /// Nothing yet; a driver may.
    Wait(Notice),
}

/// Decides the next step of a volume that was made here, by its reclaim policy, once its claim is gone and no pod of
/// this node has it.
pub(super) fn next(world: &World<'_>, name: &str, volume: &PersistentVolume) -> Reclaim {
    let is_deleted = volume.metadata.deletion_timestamp.is_some();
    let spec = volume.spec.as_ref();
    let Some((spec, source)) = spec.and_then(|it| Some((it, it.csi.as_ref()?))) else {
        return Reclaim::Keep;
    };
    let id = VolumeId {
        driver: source.driver.clone(),
        handle: source.volume_handle.clone(),
    };
    let notice = |kind, reason, message| {
        let of = (Kind::PersistentVolume, &Name::new("", name));
        Notice::new(kind, of, reason, message)
    };
    if !is_released(world.records, volume) {
        let holder = claim_of(volume).filter(|_| is_deleted);
        return holder.map_or(Reclaim::Keep, |(claim, _)| {
            let message = format!(
                "it goes when persistentvolumeclaim {claim}, which has it, has gone; hint: delete that"
            );
            Reclaim::Blocked(notice(EventType::Normal, "VolumeInUse", message))
        });
    }
    if !was_released(volume) {
        let patch = json!({"status": {"phase": RELEASED}});
        return Reclaim::Release(Write::volume(name, patch));
    }
    let is_anothers = is_anothers(world, name, &id);
    let is_to_go = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    if world.actual.volumes.contains_key(&id) || !(is_deleted || is_to_go && !is_anothers) {
        return Reclaim::Keep;
    }
    if let Some(why) = compare_claim_ref(world, name, &id) {
        return Reclaim::Blocked(notice(EventType::Warning, FAILED, why));
    }
    let VolumeId { driver, handle } = &id;
    if !is_to_go || is_anothers {
        let message = format!("it is forgotten; driver {driver} keeps what is stored, as {handle}");
        return Reclaim::Forget(notice(EventType::Normal, "VolumeKept", message));
    }
    let Some(abilities) = world.drivers.get(driver) else {
        let why = format!("waiting for driver {driver}, which has it");
        return Reclaim::Wait(notice(EventType::Warning, FAILED, why));
    };
    if !abilities.controller.has(Rpc::CreateDeleteVolume) {
        let why = format!(
            "driver {driver} lacks the capability CREATE_DELETE_VOLUME of its controller service, and has the volume as {handle}; hint: a driver that has it, or persistentVolumeReclaimPolicy: Retain"
        );
        return Reclaim::Wait(notice(EventType::Warning, FAILED, why));
    }
    Reclaim::Delete(delete(name, volume, id))
}

/// Returns why a volume must be neither deleted nor forgotten now.
fn compare_claim_ref(world: &World<'_>, name: &str, id: &VolumeId) -> Option<String> {
    if let Some(unread) = world.unread {
        return Some(unread.to_owned());
    }
    // A volume's directory in a pod has the PersistentVolume's name.
    let is_its = |path: &&PathBuf| {
        **path == world.layout.staged(id) || path.file_name().is_some_and(|it| it == name)
    };
    let path = world.broken.iter().find(is_its)?.display();
    Some(format!(
        "{path} can't be told what it is, and may be this volume's; it is cleaned when nothing of its pod runs; hint: the log says what keeps it"
    ))
}

fn delete(name: &str, volume: &PersistentVolume, id: VolumeId) -> Delete {
    let annotations = volume.metadata.annotations.as_ref();
    let said = DELETION_SECRET.map(|key| annotations.and_then(|it| it.get(key)));
    Delete {
        volume: name.to_owned(),
        request: DeleteVolumeRequest {
            volume_id: id.handle,
            ..DeleteVolumeRequest::default()
        },
        secret: match said {
            [Some(namespace), Some(secret)] => Some(Name::new(namespace, secret)),
            _ => None,
        },
        driver: id.driver,
    }
}
