//! Expands volumes whose claims request more: first the controller's part, as external-resizer does it, then kubelet's.

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
use super::status::{ClaimStatus, ExpansionProgress};
use super::{ClaimStep, Notice, PlanInputs, RecordUpdate};
use crate::csi::{DriverCapabilities, access_mode};
use crate::events::EventType;
use crate::objects::quantity::Bytes;
use crate::objects::{Kind, Name};
use crate::volumes::actual::{ActualMount, Certainty, Mounter};
use crate::volumes::spec::{VolumeId, capacity, secret, storage_class};

const FAILED: &str = "VolumeResizeFailed";

/// `ControllerExpandVolume` for a claim's volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ControllerExpand {
    pub(crate) claim: Name,
    pub(crate) driver: String,
    /// The request without the secrets.
    pub(crate) request: ControllerExpandVolumeRequest,
    /// The Secret whose data is sent as secrets.
    pub(crate) secret: Option<Name>,
    volume: String,
    size: i64,
    status: ClaimStatus,
}

impl ControllerExpand {
    /// Returns the record to write when the call starts.
    pub(crate) fn started(&self) -> RecordUpdate {
        let message = format!("resizing volume {} to {}", self.volume, Bytes(self.size));
        let notice = Notice::about_claim(EventType::Normal, &self.claim, "Resizing", message);
        self.write(ExpansionProgress::ControllerExpanding(self.size))
            .with_notice(notice)
    }

    /// Returns the records to write after a response, in this order. If crustlet stops between the two, it calls the
    /// driver again after the restart.
    pub(crate) fn succeeded(&self, response: ControllerExpandVolumeResponse) -> Vec<RecordUpdate> {
        let actual = response.capacity_bytes;
        if actual < self.size {
            let (driver, requested_bytes) = (&self.driver, self.size);
            let reason = format!(
                "driver {driver} answered ControllerExpandVolume with {actual} bytes, but {requested_bytes} were requested"
            );
            return vec![self.failed(Code::Internal, &reason)];
        }
        let (progress, reason, message) = if response.node_expansion_required {
            let message = "Require file system resize of volume on node";
            (
                ExpansionProgress::NodePending,
                "FileSystemResizeRequired",
                message,
            )
        } else {
            let message = "Resize volume succeeded";
            (
                ExpansionProgress::Done(actual),
                "VolumeResizeSuccessful",
                message,
            )
        };
        let notice =
            Notice::about_claim(EventType::Normal, &self.claim, reason, message.to_owned());
        let status = self.write(progress);
        vec![
            status,
            capacity_update(&self.volume, actual).with_notice(notice),
        ]
    }

    /// Returns the record to write after an error.
    pub(crate) fn failed(&self, code: Code, reason: &str) -> RecordUpdate {
        let progress = ExpansionProgress::ControllerFailed(is_final(code), reason);
        let message = format!(
            "resize volume {} by driver {} failed: {reason}",
            self.volume, self.driver
        );
        let notice = Notice::about_claim(EventType::Warning, &self.claim, FAILED, message);
        self.write(progress).with_notice(notice)
    }

    fn write(&self, progress: ExpansionProgress<'_>) -> RecordUpdate {
        // The allocated size is set when the call starts.
        let started = self
            .status
            .with_progress(ExpansionProgress::ControllerExpanding(self.size));
        RecordUpdate::status(&self.claim, &started.with_progress(progress))
    }
}

/// `NodeExpandVolume` for a claim's volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeExpand {
    pub(crate) claim: Name,
    pub(crate) id: VolumeId,
    /// The UID of a pod that has the volume mounted.
    pub(crate) pod: String,
    /// The program that has mounted the volume in that pod. It decides the request's `defer_fs_ops`.
    pub(crate) mounter: Mounter,
    /// The requested size in bytes (`capacity_range.required_bytes`).
    pub(crate) size: i64,
    status: ClaimStatus,
}

impl NodeExpand {
    /// Returns the record to write when the call starts.
    pub(crate) fn started(&self) -> RecordUpdate {
        RecordUpdate::status(
            &self.claim,
            &self.status.with_progress(ExpansionProgress::NodeExpanding),
        )
    }

    /// Returns the record to write after a success.
    pub(crate) fn succeeded(&self) -> RecordUpdate {
        let message = format!("NodeExpandVolume succeeded for volume {}", self.id);
        let notice = Notice::about_claim(
            EventType::Normal,
            &self.claim,
            "FileSystemResizeSuccessful",
            message,
        );
        let status = self
            .status
            .with_progress(ExpansionProgress::Done(self.size));
        RecordUpdate::status(&self.claim, &status).with_notice(notice)
    }

    /// Returns the record to write after an error.
    pub(crate) fn failed(&self, code: Code, reason: &str) -> RecordUpdate {
        // The draft's story 6: "Kubelet will note the failed precondition … and not retry it".
        let is_refused = self.mounter == Mounter::Runtime && code == Code::FailedPrecondition;
        let status = self.status.with_progress(if is_refused {
            ExpansionProgress::NodeCannotDefer(reason)
        } else {
            ExpansionProgress::NodeFailed(is_final(code), reason)
        });
        let message = format!("NodeExpandVolume failed for volume {}: {reason}", self.id);
        let notice = Notice::about_claim(EventType::Warning, &self.claim, FAILED, message);
        RecordUpdate::status(&self.claim, &status).with_notice(notice)
    }
}

/// Returns whether a retry of the call would fail too. Kubernetes decides that by the gRPC code.
const fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound
    )
}

fn capacity_update(volume: &str, size: i64) -> RecordUpdate {
    let capacity = Bytes(size).to_string();
    RecordUpdate::volume(volume, json!({"spec": {"capacity": {"storage": capacity}}}))
}

/// Decides the next step of a claim that is bound to a volume. Returns an event if the step can't be planned.
pub(super) fn next(
    inputs: &PlanInputs<'_>,
    name: &Name,
    claim: &PersistentVolumeClaim,
    volume_name: &str,
) -> Option<Result<ClaimStep, Notice>> {
    let volume = inputs.objects.volumes.get(volume_name)?;
    let key = (Kind::PersistentVolumeClaim, name.clone());
    let bound = BoundVolume {
        inputs,
        name,
        volume_name,
        volume,
        status: ClaimStatus::from_document(inputs.objects.documents.get(&key)?),
    };
    // Both values exist: the volume couldn't have been bound without them.
    let (requested, capacity) = (requested(claim).ok()?, capacity(volume)?);
    if requested > capacity {
        Some(bound.controller(requested))
    } else if bound.status.capacity().unwrap_or(capacity) < capacity {
        bound.node(capacity).transpose()
    } else {
        bound.write(&bound.status.without_expansion()).map(Ok)
    }
}

/// A bound volume with its claim.
struct BoundVolume<'o> {
    inputs: &'o PlanInputs<'o>,
    name: &'o Name,
    volume_name: &'o str,
    volume: &'o PersistentVolume,
    status: ClaimStatus,
}

impl<'o> BoundVolume<'o> {
    fn warn(&self, reason: &'static str, message: String) -> Notice {
        Notice::about_claim(EventType::Warning, self.name, reason, message)
    }

    /// Returns the step that writes a status, unless it is the same.
    fn write(&self, status: &ClaimStatus) -> Option<ClaimStep> {
        (*status != self.status).then(|| RecordUpdate::status(self.name, status).into())
    }

    fn driver(&self) -> Result<(VolumeId, &'o DriverCapabilities), Notice> {
        let source = self.volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let volume = self.volume_name;
        let Some(source) = source else {
            let message =
                format!("persistentvolume {volume} is not a CSI volume, and can't be expanded");
            return Err(self.warn(FAILED, message));
        };
        let id = VolumeId {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
        };
        let Some(capabilities) = self.inputs.drivers.get(&source.driver) else {
            let driver = &source.driver;
            let message = format!("waiting for driver {driver} to expand the volume");
            return Err(self.warn("ExternalExpanding", message));
        };
        Ok((id, capabilities))
    }

    /// Checks that the storage class allows expansion. In Kubernetes, the API server does that when the claim is
    /// changed.
    fn check_allowed(&self) -> Result<(), Notice> {
        let classes = &self.inputs.objects.storage_classes;
        let class = storage_class(self.volume);
        let found = class.and_then(|class| classes.get(class));
        if found.is_some_and(|class| class.object.allow_volume_expansion == Some(true)) {
            return Ok(());
        }
        let volume = self.volume_name;
        let reason = match (class, found) {
            (None, _) => format!(
                "persistentvolume {volume} has no storage class; hint: use a volume of a storage class with allowVolumeExpansion: true"
            ),
            (Some(class), None) => {
                format!("storageclass {class} not found; hint: add its manifest")
            }
            (Some(class), Some(_)) => format!(
                "storageclass {class} doesn't allow it; hint: set allowVolumeExpansion: true in the storage class"
            ),
        };
        let message = format!("the volume can't be expanded: {reason}");
        Err(self.warn(FAILED, message))
    }

    /// Returns the step for the controller's part.
    fn controller(&self, size: i64) -> Result<ClaimStep, Notice> {
        self.check_allowed()?;
        let (id, capabilities) = self.driver()?;
        if !capabilities.controller.has(ControllerRpc::ExpandVolume) {
            return if capabilities.node.has(Rpc::ExpandVolume) {
                // The node does the whole expansion.
                Ok(capacity_update(self.volume_name, size).into())
            } else {
                let driver = &id.driver;
                let message = format!(
                    "driver {driver} lacks the capability EXPAND_VOLUME of both its controller service and its node service"
                );
                Err(self.warn(FAILED, message))
            };
        }
        let spec = self.volume.spec.clone().unwrap_or_default();
        let source = spec.csi.unwrap_or_default();
        let supports_single_node_modes = capabilities
            .controller
            .has(ControllerRpc::SingleNodeMultiWriter);
        let access_mode = access_mode(
            &spec.access_modes.unwrap_or_default(),
            supports_single_node_modes,
        );
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
        Ok(ClaimStep::ControllerExpand(Box::new(ControllerExpand {
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

    /// Returns the step for the node's part. `None` if there is nothing to do now.
    fn node(&self, size: i64) -> Result<Option<ClaimStep>, Notice> {
        let (id, capabilities) = self.driver()?;
        let Some((pod, mounter)) = self.mount(&id) else {
            return Ok(self.write(&self.status.with_progress(ExpansionProgress::NodePending)));
        };
        let (driver, node) = (&id.driver, &capabilities.node);
        if mounter == Mounter::Deferred && !node.has(Rpc::DeferFsOps) {
            let reason = format!(
                "driver {driver} lacks the capability DEFER_FS_OPS, and the volume is deferred; hint: upgrade the driver, or recreate the pod without deferFSMount"
            );
            let status = self
                .status
                .with_progress(ExpansionProgress::NodeCannotDefer(&reason));
            let notice = self.warn(FAILED, reason);
            return if status == self.status {
                Err(notice)
            } else {
                Ok(Some(
                    RecordUpdate::status(self.name, &status)
                        .with_notice(notice)
                        .into(),
                ))
            };
        }
        if mounter == Mounter::Runtime && self.status.cannot_defer() {
            return Ok(None);
        }
        if !node.has(Rpc::ExpandVolume) {
            let message = format!(
                "the file system has to be expanded on the node, and driver {driver} lacks the capability EXPAND_VOLUME of its node service"
            );
            return Err(self.warn(FAILED, message));
        }
        Ok(Some(ClaimStep::NodeExpand(Box::new(NodeExpand {
            claim: self.name.clone(),
            id,
            pod,
            mounter,
            size,
            status: self.status.clone(),
        }))))
    }

    /// Returns a pod that has the volume mounted, and the mount's mounter. Any pod will do, because all of them mount
    /// the same file system.
    fn mount(&self, id: &VolumeId) -> Option<(String, Mounter)> {
        let mounts = self.inputs.actual.volumes.get(id)?.mounts.iter();
        let is_certain = |mount: &ActualMount| mount.certainty == Certainty::Certain;
        let mut mounted = mounts.filter(|(_, mount)| is_certain(mount));
        let (pod, mount) = mounted.next()?;
        Some((pod.clone(), mount.mounter))
    }
}
