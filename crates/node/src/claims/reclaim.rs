//! Volumes that were made for claims that are gone.

use crust_proto::csi::v1::DeleteVolumeRequest;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::binding::claim_of;
use super::provision::DELETION_SECRET;
use super::{Notice, Records, Step, World};
use crate::events::Type;
use crate::objects::{Kind, Name};
use crate::volumes::spec::VolumeId;

/// A volume that is to be destroyed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delete {
    /// The `PersistentVolume`.
    pub(crate) volume: String,
    /// Whose it is.
    pub(crate) driver: String,
    /// What the driver is asked, but for the secrets.
    pub(crate) request: DeleteVolumeRequest,
    /// Where those are.
    pub(crate) secret: Option<Name>,
}

impl Delete {
    /// Which volume it is.
    pub(crate) fn id(&self) -> VolumeId {
        VolumeId {
            driver: self.driver.clone(),
            handle: self.request.volume_id.clone(),
        }
    }

    /// What is next once it is destroyed.
    pub(crate) fn done(&self) -> Step {
        Step::Forget(Kind::PersistentVolume, Name::new("", &self.volume))
    }

    /// To be told where it isn't.
    pub(crate) fn failed(&self, why: &str) -> Notice {
        let volume = Name::new("", &self.volume);
        let of = (Kind::PersistentVolume, &volume);
        Notice::new(Type::Warning, of, "VolumeFailedDelete", why.to_owned())
    }
}

/// Whether the claim that had a volume is gone.
pub(super) fn is_released(records: &Records, volume: &PersistentVolume) -> bool {
    match claim_of(volume) {
        Some((claim, Some(uid))) => records.uid(&claim) != Some(uid),
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

/// A volume that was made here, whose claim is gone, that nobody on this node uses, and that isn't to be kept.
pub(super) fn delete(
    world: &World<'_>,
    name: &str,
    volume: &PersistentVolume,
) -> Option<Result<Delete, Notice>> {
    let spec = volume.spec.as_ref()?;
    let source = spec.csi.as_ref()?;
    let id = VolumeId {
        driver: source.driver.clone(),
        handle: source.volume_handle.clone(),
    };
    if !world.records.has_made(name)
        || spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete")
        || !is_released(world.records, volume)
        || world.actual.volumes.contains_key(&id)
        || is_anothers(world, name, &id)
    {
        return None;
    }
    let annotations = volume.metadata.annotations.as_ref();
    let said = DELETION_SECRET.map(|key| annotations.and_then(|it| it.get(key)));
    let delete = Delete {
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
    };
    Some(if world.drivers.contains_key(&delete.driver) {
        Ok(delete)
    } else {
        let why = format!("waiting for driver {}, which has it", delete.driver);
        Err(delete.failed(&why))
    })
}
