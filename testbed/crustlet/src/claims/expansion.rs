//! Grows volumes whose claims ask for more: the controller's part, as external-resizer, then kubelet's.

use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use crust_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, VolumeCapability,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;
use tonic::Code;

use super::request::requested;
use super::status::{ClaimStatus, Progress};
use super::{Notice, Step, World, Write};
use crate::csi::{DriverCapabilities, access_mode};
use crate::events::EventType;
use crate::objects::quantity::Bytes;
use crate::objects::{Kind, Name};
use crate::volumes::actual::{ActualMount, Certainty, Mounter};
use crate::volumes::spec::{VolumeId, capacity, secret, storage_class};

const FAILED: &str = "VolumeResizeFailed";

/// A claim's volume that is to be larger, by its driver's controller.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grow {
    pub(crate) claim: Name,
    pub(crate) driver: String,
    /// The request, without the secrets.
    pub(crate) request: ControllerExpandVolumeRequest,
    /// The Secret with the secrets.
    pub(crate) secret: Option<Name>,
    volume: String,
    size: i64,
    status: ClaimStatus,
}

impl Grow {
    /// To be written as the driver is asked.
    pub(crate) fn begun(&self) -> Write {
        let message = format!("resizing volume {} to {}", self.volume, Bytes(self.size));
        let notice = Notice::of_claim(EventType::Normal, &self.claim, "Resizing", message);
        self.write(Progress::Controller(self.size)).telling(notice)
    }

    /// Returns the records for an answer, in the order in which they are written. After a restart between the two the
    /// driver is asked once more, so nothing is missed.
    pub(crate) fn done(&self, answer: ControllerExpandVolumeResponse) -> Vec<Write> {
        let given = answer.capacity_bytes;
        if given < self.size {
            let (driver, asked) = (&self.driver, self.size);
            let why = format!(
                "driver {driver} answers ControllerExpandVolume with {given} bytes, where {asked} were asked for"
            );
            return vec![self.failed(Code::Internal, &why)];
        }
        let (progress, reason, message) = if answer.node_expansion_required {
            let message = "Require file system resize of volume on node";
            (Progress::NodePending, "FileSystemResizeRequired", message)
        } else {
            let message = "Resize volume succeeded";
            (Progress::Done(given), "VolumeResizeSuccessful", message)
        };
        let notice = Notice::of_claim(EventType::Normal, &self.claim, reason, message.to_owned());
        let status = self.write(progress);
        vec![status, grown(&self.volume, given).telling(notice)]
    }

    /// The same of a refusal.
    pub(crate) fn failed(&self, code: Code, why: &str) -> Write {
        let progress = Progress::ControllerFailed(is_final(code), why);
        let message = format!(
            "resize volume {} by driver {} failed: {why}",
            self.volume, self.driver
        );
        let notice = Notice::of_claim(EventType::Warning, &self.claim, FAILED, message);
        self.write(progress).telling(notice)
    }

    fn write(&self, progress: Progress<'_>) -> Write {
        // What was allocated is said by the call that asked for it.
        let begun = self.status.after(Progress::Controller(self.size));
        Write::status(&self.claim, &begun.after(progress))
    }
}

/// A claim's file system that is to be as large as its volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GrowOnNode {
    pub(crate) claim: Name,
    /// Its volume.
    pub(crate) id: VolumeId,
    /// The UID of a pod that has the volume mounted.
    pub(crate) pod: String,
    /// The program that has it mounted there, for `defer_fs_ops`.
    pub(crate) mounter: Mounter,
    /// In bytes: `capacity_range.required_bytes`.
    pub(crate) size: i64,
    status: ClaimStatus,
}

impl GrowOnNode {
    /// To be written as the driver is asked.
    pub(crate) fn begun(&self) -> Write {
        Write::status(&self.claim, &self.status.after(Progress::Node))
    }

    /// Returns the record for a success.
    pub(crate) fn done(&self) -> Write {
        let message = format!("NodeExpandVolume succeeded for volume {}", self.id);
        let notice = Notice::of_claim(
            EventType::Normal,
            &self.claim,
            "FileSystemResizeSuccessful",
            message,
        );
        let status = self.status.after(Progress::Done(self.size));
        Write::status(&self.claim, &status).telling(notice)
    }

    /// The same of a refusal.
    pub(crate) fn failed(&self, code: Code, why: &str) -> Write {
        // The draft's story 6: "Kubelet will note the failed precondition … and not retry it".
        let is_refused = self.mounter == Mounter::Runtime && code == Code::FailedPrecondition;
        let status = self.status.after(if is_refused {
            Progress::NodeCannotDefer(why)
        } else {
            Progress::NodeFailed(is_final(code), why)
        });
        let message = format!("NodeExpandVolume failed for volume {}: {why}", self.id);
        let notice = Notice::of_claim(EventType::Warning, &self.claim, FAILED, message);
        Write::status(&self.claim, &status).telling(notice)
    }
}

/// Whether the same call would be refused for ever, as Kubernetes has it.
const fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound
    )
}

fn grown(volume: &str, size: i64) -> Write {
    let capacity = Bytes(size).to_string();
    Write::volume(volume, json!({"spec": {"capacity": {"storage": capacity}}}))
}

/// Decides the next step of a claim that has a volume.
pub(super) fn next(
    world: &World<'_>,
    name: &Name,
    claim: &PersistentVolumeClaim,
    volume_name: &str,
) -> Option<Result<Step, Notice>> {
    let volume = world.objects.volumes.get(volume_name)?;
    let key = (Kind::PersistentVolumeClaim, name.clone());
    let of = BoundVolume {
        world,
        name,
        volume_name,
        volume,
        status: ClaimStatus::of(world.objects.documents.get(&key)?),
    };
    // Whoever binds them has read both.
    let (requested, capacity) = (requested(claim).ok()?, capacity(volume)?);
    if requested > capacity {
        Some(of.controller(requested))
    } else if of.status.capacity().unwrap_or(capacity) < capacity {
        of.node(capacity).transpose()
    } else {
        of.write(&of.status.settled()).map(Ok)
    }
}

/// A bound volume with its claim.
struct BoundVolume<'o> {
    world: &'o World<'o>,
    name: &'o Name,
    volume_name: &'o str,
    volume: &'o PersistentVolume,
    status: ClaimStatus,
}

impl<'o> BoundVolume<'o> {
    fn warn(&self, reason: &'static str, message: String) -> Notice {
        Notice::of_claim(EventType::Warning, self.name, reason, message)
    }

    /// Returns the step that writes a status, unless it is the same.
    fn write(&self, status: &ClaimStatus) -> Option<Step> {
        (*status != self.status).then(|| Write::status(self.name, status).into())
    }

    fn driver(&self) -> Result<(VolumeId, &'o DriverCapabilities), Notice> {
        let source = self.volume.spec.as_ref().and_then(|it| it.csi.as_ref());
        let volume = self.volume_name;
        let Some(source) = source else {
            let message = format!("persistentvolume {volume} is no CSI driver's, and can't grow");
            return Err(self.warn(FAILED, message));
        };
        let id = VolumeId {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
        };
        let Some(abilities) = self.world.drivers.get(&source.driver) else {
            let driver = &source.driver;
            let message = format!("waiting for driver {driver}, which is to resize the volume");
            return Err(self.warn("ExternalExpanding", message));
        };
        Ok((id, abilities))
    }

    /// Nobody else asks whether the class allows it: elsewhere the API server does as the claim is changed.
    fn check_allowed(&self) -> Result<(), Notice> {
        let classes = &self.world.objects.storage_classes;
        let class = storage_class(self.volume);
        let found = class.and_then(|it| classes.get(it));
        if found.is_some_and(|it| it.object.allow_volume_expansion == Some(true)) {
            return Ok(());
        }
        let volume = self.volume_name;
        let why = match (class, found) {
            (None, _) => format!("persistentvolume {volume} has no storage class"),
            (Some(class), None) => format!("storageclass {class} not found"),
            (Some(class), Some(_)) => format!("storageclass {class} doesn't allow it"),
        };
        let hint = "hint: a storage class with allowVolumeExpansion: true";
        Err(self.warn(FAILED, format!("the volume can't grow: {why}; {hint}")))
    }

    fn controller(&self, size: i64) -> Result<Step, Notice> {
        self.check_allowed()?;
        let (id, abilities) = self.driver()?;
        if !abilities.controller.has(ControllerRpc::ExpandVolume) {
            return if abilities.node.has(Rpc::ExpandVolume) {
                // Then the node has it all to do.
                Ok(grown(self.volume_name, size).into())
            } else {
                let driver = &id.driver;
                let message = format!(
                    "driver {driver} lacks the capability EXPAND_VOLUME, of its controller service and of its node service"
                );
                Err(self.warn(FAILED, message))
            };
        }
        let spec = self.volume.spec.clone().unwrap_or_default();
        let source = spec.csi.unwrap_or_default();
        let knows = abilities
            .controller
            .has(ControllerRpc::SingleNodeMultiWriter);
        let access_mode = access_mode(&spec.access_modes.unwrap_or_default(), knows);
        let capability = VolumeCapability {
            access_mode: Some(AccessMode {
                mode: access_mode.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: source.fs_type.unwrap_or_default(),
                mount_flags: spec.mount_options.unwrap_or_default(),
                ..MountVolume::default()
            })),
        };
        Ok(Step::Grow(Box::new(Grow {
            claim: self.name.clone(),
            driver: id.driver,
            request: ControllerExpandVolumeRequest {
                volume_id: id.handle,
                capacity_range: Some(CapacityRange {
                    required_bytes: size,
                    limit_bytes: 0,
                }),
                volume_capability: Some(capability),
                ..ControllerExpandVolumeRequest::default()
            },
            secret: secret(source.controller_expand_secret_ref.as_ref()),
            volume: self.volume_name.to_owned(),
            size,
            status: self.status.clone(),
        })))
    }

    fn node(&self, size: i64) -> Result<Option<Step>, Notice> {
        let (id, abilities) = self.driver()?;
        let Some((pod, mounter)) = self.mount(&id) else {
            return Ok(self.write(&self.status.after(Progress::NodePending)));
        };
        let (driver, node) = (&id.driver, &abilities.node);
        if mounter == Mounter::Deferred && !node.has(Rpc::DeferFsOps) {
            let why = format!(
                "driver {driver} lacks the capability DEFER_FS_OPS, and the volume is deferred; hint: upgrade the driver, or start the pod anew without deferFSMount"
            );
            let status = self.status.after(Progress::NodeCannotDefer(&why));
            let notice = self.warn(FAILED, why);
            return if status == self.status {
                Err(notice)
            } else {
                Ok(Some(
                    Write::status(self.name, &status).telling(notice).into(),
                ))
            };
        }
        if mounter == Mounter::Runtime && self.status.cannot_defer() {
            return Ok(None);
        }
        if !node.has(Rpc::ExpandVolume) {
            let message = format!(
                "the file system is to grow on the node, and driver {driver} lacks the capability EXPAND_VOLUME of its node service"
            );
            return Err(self.warn(FAILED, message));
        }
        Ok(Some(Step::GrowOnNode(Box::new(GrowOnNode {
            claim: self.name.clone(),
            id,
            pod,
            mounter,
            size,
            status: self.status.clone(),
        }))))
    }

    /// One is enough: it is one file system.
    fn mount(&self, id: &VolumeId) -> Option<(String, Mounter)> {
        let mounts = self.world.actual.volumes.get(id)?.mounts.iter();
        let is_there = |mount: &ActualMount| mount.certainty == Certainty::Certain;
        let mut there = mounts.filter(|(_, mount)| is_there(mount));
        let (pod, mount) = there.next()?;
        Some((pod.clone(), mount.mounter))
    }
}
