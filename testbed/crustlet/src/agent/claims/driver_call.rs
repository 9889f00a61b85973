//! The drivers' calls for claims and their volumes. Each runs in a task of its own.

use std::time::Instant;

use tonic::Code;

use super::{ClaimTaskResult, ObjectKey};
use crate::agent::pods::Pods;
use crate::agent::volumes::Volumes;
use crate::claims::{
    ClaimStep, ControllerExpand, CreateVolume, DeleteVolume, NodeExpand, Notice, ProvisionError,
    RecordUpdate,
};
use crate::csi::DriverCapabilities;
use crate::metrics::StorageOperation;
use crate::objects::Objects;
use crate::operations::{self, Context, MountingRuntime, OperationError, Publication};
use crate::volumes::spec::{VolumeId, VolumeSpec};

#[derive(Debug)]
pub(super) enum DriverCall {
    Create(Box<CreateVolume>),
    Delete(Box<DeleteVolume>),
    ControllerExpand(Box<ControllerExpand>),
    NodeExpand(Box<NodeExpandCall>),
}

/// `NodeExpandVolume` for a mounted volume, with everything that the request needs.
#[derive(Debug)]
pub(super) struct NodeExpandCall {
    step: NodeExpand,
    publication: Publication,
    volume: VolumeSpec,
    runtime: Option<MountingRuntime>,
}

impl NodeExpandCall {
    /// Returns the call for a step. `None` if the pod's mount is gone or isn't desired any more.
    pub(super) fn new(step: NodeExpand, pods: &Pods, volumes: &Volumes) -> Option<Self> {
        let mount = volumes.actual().mount(&step.id, &step.pod)?;
        let desired = volumes.desired().volumes.get(&step.id)?;
        let desired = desired.mounts.get(&step.pod)?;
        Some(Self {
            publication: Publication {
                id: step.id.clone(),
                pod: step.pod.clone(),
                directory: mount.directory.clone(),
                mounter: step.mounter,
            },
            volume: desired.volume.clone(),
            runtime: pods.mounting_runtime(&step.pod, desired, mount.mounter),
            step,
        })
    }
}

impl DriverCall {
    /// Returns the volume that no other operation may use during the call, and the call's name in CSI.
    /// `ControllerExpandVolume` reserves no volume, as in Kubernetes: the end of a pod doesn't wait for the call.
    pub(super) fn reservation(&self) -> Option<(VolumeId, &'static str)> {
        match self {
            Self::Create(_) | Self::ControllerExpand(_) => None,
            Self::Delete(delete) => Some((delete.id(), "DeleteVolume")),
            Self::NodeExpand(expand) => Some((expand.step.id.clone(), "NodeExpandVolume")),
        }
    }

    pub(super) fn driver(&self) -> &str {
        match self {
            Self::Create(create) => &create.driver,
            Self::Delete(delete) => &delete.driver,
            Self::ControllerExpand(expand) => &expand.driver,
            Self::NodeExpand(expand) => &expand.step.id.driver,
        }
    }

    /// Makes the call, unless the driver's capabilities differ from those that the step was planned with.
    pub(super) async fn carry_out(
        self,
        context: &Context,
        objects: &Objects,
        key: ObjectKey,
        known: Option<DriverCapabilities>,
    ) -> ClaimTaskResult {
        let name = self.driver().to_owned();
        if let Some(driver) = context.drivers.get(&name)
            && let Ok(capabilities) = operations::driver_capabilities(&driver).await
            && known.as_ref() != Some(&capabilities)
        {
            return ClaimTaskResult::CapabilitiesChanged(key, name, capabilities);
        }
        let mut result = CallResult::default();
        match self {
            Self::Create(create) => {
                match operations::create_volume(context, objects, &create).await {
                    Ok(response) => match create.volume_record(response) {
                        Ok(update) => result.updates.push(update),
                        Err(error) => result.fail(create.failed(&error)),
                    },
                    Err(error) => {
                        let error = ProvisionError::Call(crust_state::error_message(&error));
                        result.fail(create.failed(&error));
                    }
                }
            }
            Self::Delete(delete) => {
                match operations::delete_volume(context, objects, &delete).await {
                    Ok(()) => {
                        if let ClaimStep::Forget(kind, name) = delete.succeeded() {
                            result.forget = Some((kind, name));
                        }
                    }
                    Err(error) => result.fail(delete.failed(&crust_state::error_message(&error))),
                }
            }
            Self::ControllerExpand(expand) => {
                match operations::controller_expand(context, objects, &expand).await {
                    Ok(response) => result.updates = expand.succeeded(response),
                    Err(error) => {
                        result.is_failed = true;
                        result
                            .updates
                            .push(expand.failed(error.code(), &crust_state::error_message(&error)));
                    }
                }
            }
            Self::NodeExpand(call) => {
                let started = Instant::now();
                let expansion = operations::Expansion {
                    publication: &call.publication,
                    volume: &call.volume,
                    size: call.step.size,
                    runtime: call.runtime.as_ref(),
                };
                let expanded = operations::node_expand(context, objects, expansion).await;
                let metrics = &context.metrics;
                metrics.operation(
                    &name,
                    StorageOperation::FsResize,
                    expanded.is_ok(),
                    started.elapsed(),
                );
                result.is_failed = expanded.is_err();
                result.updates.push(match expanded {
                    Ok(()) => call.step.succeeded(),
                    Err(error) => call
                        .step
                        .failed(error.code(), &crust_state::error_message(&error)),
                });
            }
        }
        ClaimTaskResult::Step {
            key,
            is_ok: !result.is_failed,
            updates: result.updates,
            forget: result.forget,
            notice: result.notice,
        }
    }
}

#[derive(Default)]
struct CallResult {
    is_failed: bool,
    updates: Vec<RecordUpdate>,
    forget: Option<ObjectKey>,
    notice: Option<Notice>,
}

impl CallResult {
    fn fail(&mut self, notice: Notice) {
        self.is_failed = true;
        self.notice = Some(notice);
    }
}

impl OperationError {
    /// Returns the gRPC code of the driver or the runtime, and `FailedPrecondition` for errors without one.
    fn code(&self) -> Code {
        match self {
            Self::Call(error) => error.code(),
            Self::Runtime(error) => error.code(),
            _ => Code::FailedPrecondition,
        }
    }
}
