//! Carries out a pod's step in a task of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Done;
use crate::cri::{Cri, CriError};
use crate::events::Regarding;
use crate::objects::{Objects, Pod};
use crate::operations::{self, Context, OperationError, PathRequest, RuntimeMount, VolumeKind};
use crate::pods::config::{self, NodeFacts, Source};
use crate::pods::failures::Failure;
use crate::pods::observed::Observed;
use crate::pods::{PodStep, Subject};
use crate::volumes::actual::{ActualMount, Mounter};
use crate::volumes::spec::{ResolvedVolume, VolumeId, resolve};
use crate::worker::Worker;

/// A step of a pod that has started, with the values that it works on.
#[derive(Debug)]
pub(super) struct StartedStep {
    pub(super) objects: Arc<Objects>,
    pub(super) regarding: Regarding,
    pub(super) pod: Option<Arc<Pod>>,
    pub(super) node: Arc<NodeFacts>,
    pub(super) step: PodStep,
    /// The volumes that the runtime handler is to mount.
    pub(super) late: Vec<RuntimeMount>,
    /// The pod's volumes that are there.
    pub(super) mounted: BTreeMap<VolumeId, ActualMount>,
}

/// A step has ended.
#[derive(Debug)]
pub(crate) struct PodDone {
    pub(super) uid: String,
    pub(super) subject: Subject,
    /// The sandbox for which the runtime handler was told.
    pub(super) told: Option<String>,
    pub(super) result: Result<(), Failure>,
    /// The pod's state after the step.
    pub(super) observed: Result<Option<Observed>, CriError>,
}

pub(super) fn begin(
    context: Context,
    cri: Cri,
    worker: Worker,
    begun: StartedStep,
    done: mpsc::UnboundedSender<Done>,
) {
    tokio::spawn(async move {
        let subject = begun.step.subject();
        let told = match &begun.step {
            PodStep::PublishToRuntime { sandbox } => Some(sandbox.clone()),
            _ => None,
        };
        let result = carry_out(&context, &worker, &begun).await;
        let observed = cri.pod(&begun.regarding.uid).await;
        let ended = PodDone {
            uid: begun.regarding.uid,
            subject,
            told: told.filter(|_| result.is_ok()),
            result,
            observed,
        };
        // Nobody hears of it where the process ends.
        let _ = done.send(Done::Pod(ended));
    });
}

async fn carry_out(context: &Context, worker: &Worker, begun: &StartedStep) -> Result<(), Failure> {
    let StartedStep {
        objects,
        regarding,
        pod,
        step,
        ..
    } = begun;
    let ended = match (step, pod) {
        (PodStep::End(end), _) => worker.end(regarding, end).await,
        (PodStep::RunSandbox(sandbox), Some(pod)) => {
            // By it the next agent knows of the pod, whatever becomes of this one.
            let (layout, begun) = (context.layout.clone(), Arc::clone(pod));
            let recorded =
                operations::blocking(move || operations::write_pod_record(&layout, &begun));
            recorded.await.map_err(|error| {
                let reason = "FailedToMakePodDataDirectories";
                failed(context, regarding, reason, &error)
            })?;
            let made = worker.run_sandbox(objects, pod, sandbox).await;
            made.map(|_id| ())
        }
        (PodStep::PublishToRuntime { sandbox }, Some(_)) => {
            let told = operations::publish_to_runtime(sandbox, &begun.late).await;
            return told.map_err(|error| failed(context, regarding, "FailedMount", &error));
        }
        (PodStep::StartContainer(start), Some(pod)) => {
            let found = sources(context, objects, pod, &start.name, begun).await;
            let sources =
                found.map_err(|error| failed(context, regarding, "FailedMount", &error))?;
            worker.start_container(pod, start, &sources).await
        }
        // Nothing is made of a pod that nobody has written down.
        (_, None) => Ok(()),
    };
    ended.map_err(|error| Failure::from(&error))
}

fn failed(
    context: &Context,
    regarding: &Regarding,
    reason: &'static str,
    error: &OperationError,
) -> Failure {
    let message = crust_state::sentence(error);
    let events = &context.events;
    events.warning(regarding.clone(), reason, message.clone());
    Failure {
        reason: Failure::CONFIG,
        message,
        is_pull: false,
    }
}

/// Returns the sources of a container's volumes, in the order of its `volumeMounts`.
async fn sources(
    context: &Context,
    objects: &Arc<Objects>,
    pod: &Arc<Pod>,
    name: &str,
    begun: &StartedStep,
) -> Result<Vec<Source>, OperationError> {
    let container = pod.containers().find(|it| it.name == name);
    let missing = || OperationError::Other(format!("there is no container {name:?}"));
    let container = container.ok_or_else(missing)?;
    let mut wanted = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let mut volumes = pod.spec.volumes.iter().flatten();
        let volume = volumes.find(|it| it.name == mount.name);
        let resolved = volume.map(|volume| resolve(objects, pod, volume));
        let kind = match resolved.transpose()? {
            Some(ResolvedVolume::Csi(spec)) => {
                // Where it isn't the runtime would make a directory, and the workload write to the host's disk.
                let id = &spec.volume.id;
                let there = begun.mounted.get(id);
                let there = there.filter(|it| it.directory == spec.volume.directory);
                let there = there.ok_or_else(|| OperationError::NotPublished(id.clone()))?;
                VolumeKind::Csi {
                    by_runtime: there.mounter != Mounter::Driver,
                    read_only: spec.read_only || spec.volume.read_only,
                    directory: spec.volume.directory,
                }
            }
            Some(ResolvedVolume::EmptyDir) => VolumeKind::EmptyDir {
                name: mount.name.clone(),
                group: pod
                    .spec
                    .security_context
                    .as_ref()
                    .and_then(|it| it.fs_group),
            },
            Some(ResolvedVolume::HostPath(path)) => VolumeKind::HostPath {
                path,
                kind: volume
                    .and_then(|it| it.host_path.as_ref()?.type_.clone())
                    .unwrap_or_default(),
            },
            // It was looked at when the pod was read.
            None => continue,
        };
        let subpath = config::subpath(pod, &begun.node, container, mount)?;
        wanted.push(PathRequest {
            volume: kind,
            subpath,
        });
    }
    let (layout, uid, name) = (context.layout.clone(), pod.uid.clone(), name.to_owned());
    let given =
        operations::blocking(move || operations::mount_sources(&layout, &uid, &name, &wanted));
    let given = given.await?.into_iter().map(|it| Source {
        host_path: it.path,
        read_only: it.read_only,
    });
    Ok(given.collect())
}
