//! The drivers' calls for claims and their volumes, each a task of its own.

use std::time::Instant;

use tonic::Code;

use super::{ClaimDone, Key};
use crate::agent::pods::Pods;
use crate::agent::volumes::Volumes;
use crate::claims::{Create, Delete, Grow, GrowOnNode, Notice, Step, Unprovisionable, Write};
use crate::csi::DriverCapabilities;
use crate::metrics::Operation;
use crate::objects::Objects;
use crate::operations::{self, Context, MountingRuntime, OperationError, Publication};
use crate::volumes::spec::{VolumeId, VolumeSpec};

/// A call that takes time.
#[derive(Debug)]
pub(super) enum Call {
    Create(Box<Create>),
    Delete(Box<Delete>),
    Grow(Box<Grow>),
    OnNode(Box<OnNode>),
}

/// A file system that is to grow, with what its driver needs to know.
#[derive(Debug)]
pub(super) struct OnNode {
    pub(super) grow: GrowOnNode,
    publication: Publication,
    volume: VolumeSpec,
    runtime: Option<MountingRuntime>,
}

impl OnNode {
    pub(super) fn of(grow: GrowOnNode, pods: &Pods, volumes: &Volumes) -> Option<Self> {
        let mount = volumes.actual().mount(&grow.id, &grow.pod)?;
        let wanted = volumes.desired().volumes.get(&grow.id)?;
        let wanted = wanted.mounts.get(&grow.pod)?;
        Some(Self {
            publication: Publication {
                id: grow.id.clone(),
                pod: grow.pod.clone(),
                directory: mount.directory.clone(),
                mounter: grow.mounter,
            },
            volume: wanted.volume.clone(),
            runtime: pods.telling(&grow.pod, wanted, mount.mounter),
            grow,
        })
    }
}

impl Call {
    /// Returns the volume whose turn the call takes, and the call's name in CSI. The controller's growth takes none, as
    /// elsewhere: a pod's end doesn't wait for it.
    pub(super) fn turn(&self) -> Option<(VolumeId, &'static str)> {
        match self {
            Self::Create(_) | Self::Grow(_) => None,
            Self::Delete(it) => Some((it.id(), "DeleteVolume")),
            Self::OnNode(it) => Some((it.grow.id.clone(), "NodeExpandVolume")),
        }
    }

    pub(super) fn driver(&self) -> &str {
        match self {
            Self::Create(it) => &it.driver,
            Self::Delete(it) => &it.driver,
            Self::Grow(it) => &it.driver,
            Self::OnNode(it) => &it.grow.id.driver,
        }
    }

    pub(super) async fn carry_out(
        self,
        context: &Context,
        objects: &Objects,
        key: Key,
        known: Option<DriverCapabilities>,
    ) -> ClaimDone {
        // What was decided was decided by what the driver could do.
        let name = self.driver().to_owned();
        if let Some(driver) = context.drivers.get(&name)
            && let Ok(abilities) = operations::driver_capabilities(&driver).await
            && known.as_ref() != Some(&abilities)
        {
            return ClaimDone::Other(key, name, abilities);
        }
        let mut step = Ended::default();
        match self {
            Self::Create(create) => {
                match operations::create_volume(context, objects, &create).await {
                    Ok(answer) => match create.made(answer) {
                        Ok(write) => step.writes.push(write),
                        Err(why) => step.fail(create.failed(&why)),
                    },
                    Err(error) => {
                        let why = Unprovisionable::Call(crust_state::sentence(&error));
                        step.fail(create.failed(&why));
                    }
                }
            }
            Self::Delete(delete) => {
                match operations::delete_volume(context, objects, &delete).await {
                    Ok(()) => {
                        if let Step::Forget(kind, name) = delete.done() {
                            step.forget = Some((kind, name));
                        }
                    }
                    Err(error) => step.fail(delete.failed(&crust_state::sentence(&error))),
                }
            }
            Self::Grow(grow) => {
                match operations::controller_expand(context, objects, &grow).await {
                    Ok(answer) => step.writes = grow.done(answer),
                    Err(error) => {
                        step.is_failed = true;
                        step.writes
                            .push(grow.failed(error.code(), &crust_state::sentence(&error)));
                    }
                }
            }
            Self::OnNode(it) => {
                let begun = Instant::now();
                let expansion = operations::Expansion {
                    publication: &it.publication,
                    volume: &it.volume,
                    size: it.grow.size,
                    runtime: it.runtime.as_ref(),
                };
                let ended = operations::node_expand(context, objects, expansion).await;
                let metrics = &context.metrics;
                metrics.operation(&name, Operation::FsResize, ended.is_ok(), begun.elapsed());
                step.is_failed = ended.is_err();
                step.writes.push(match ended {
                    Ok(()) => it.grow.done(),
                    Err(error) => it.grow.failed(error.code(), &crust_state::sentence(&error)),
                });
            }
        }
        ClaimDone::Step {
            key,
            is_ok: !step.is_failed,
            writes: step.writes,
            forget: step.forget,
            notice: step.notice,
        }
    }
}

#[derive(Default)]
struct Ended {
    is_failed: bool,
    writes: Vec<Write>,
    forget: Option<Key>,
    notice: Option<Notice>,
}

impl Ended {
    fn fail(&mut self, notice: Notice) {
        self.is_failed = true;
        self.notice = Some(notice);
    }
}

impl OperationError {
    /// gRPC's, whoever has answered.
    fn code(&self) -> Code {
        match self {
            Self::Call(error) => error.code(),
            Self::Runtime(error) => error.code(),
            _ => Code::FailedPrecondition,
        }
    }
}
