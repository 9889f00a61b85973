//! Carries out a pod's step in a task of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Completion;
use crate::cri::{Cri, CriError};
use crate::events::Regarding;
use crate::objects::{Objects, Pod};
use crate::operations::{self, Context, OperationError, PathRequest, RuntimeMount, VolumeKind};
use crate::pods::config::{self, MountSource, NodeInfo};
use crate::pods::failures::Failure;
use crate::pods::observed::ObservedPod;
use crate::pods::{PodStep, StepSubject};
use crate::volumes::actual::{ActualMount, Mounter};
use crate::volumes::spec::{ResolvedVolume, VolumeId, resolve};
use crate::worker::PodWorker;

/// A started step of a pod, with its inputs.
#[derive(Debug)]
pub(super) struct StartedStep {
    pub(super) objects: Arc<Objects>,
    pub(super) regarding: Regarding,
    pub(super) pod: Option<Arc<Pod>>,
    pub(super) node: Arc<NodeInfo>,
    pub(super) step: PodStep,
    /// The volumes that the runtime handler has to mount (KEP-2857's earlier draft).
    pub(super) runtime_mounts: Vec<RuntimeMount>,
    /// The pod's volumes that are mounted.
    pub(super) mounted: BTreeMap<VolumeId, ActualMount>,
}

#[derive(Debug)]
pub(crate) struct PodStepResult {
    pub(super) uid: String,
    pub(super) subject: StepSubject,
    /// The sandbox in which the runtime handler has mounted volumes, if the step was to have them mounted.
    pub(super) published_to: Option<String>,
    pub(super) result: Result<(), Failure>,
    /// The pod in the container runtime after the step.
    pub(super) observed: Result<Option<ObservedPod>, CriError>,
}

/// Carries out a step in a task of its own, and sends its result to the agent.
pub(super) fn spawn(
    context: Context,
    cri: Cri,
    worker: PodWorker,
    started: StartedStep,
    completions: mpsc::UnboundedSender<Completion>,
) {
    tokio::spawn(async move {
        let subject = started.step.subject();
        let sandbox = match &started.step {
            PodStep::PublishToRuntime { sandbox } => Some(sandbox.clone()),
            _ => None,
        };
        let result = carry_out(&context, &worker, &started).await;
        let observed = cri.pod(&started.regarding.uid).await;
        let result = PodStepResult {
            uid: started.regarding.uid,
            subject,
            published_to: sandbox.filter(|_| result.is_ok()),
            result,
            observed,
        };
        // The channel is closed only when the process is ending.
        let _ = completions.send(Completion::Pod(result));
    });
}

async fn carry_out(
    context: &Context,
    worker: &PodWorker,
    started: &StartedStep,
) -> Result<(), Failure> {
    let StartedStep {
        objects,
        regarding,
        pod,
        step,
        ..
    } = started;
    let result = match (step, pod) {
        (PodStep::End(end), _) => worker.end(regarding, end).await,
        (PodStep::RunSandbox(sandbox), Some(pod)) => {
            // From this record crustlet learns about the pod after a restart, even if this process ends now.
            let (layout, pod_record) = (context.layout.clone(), Arc::clone(pod));
            let recorded =
                operations::blocking(move || operations::write_pod_record(&layout, &pod_record));
            recorded.await.map_err(|error| {
                let reason = "FailedToMakePodDataDirectories";
                report_failure(context, regarding, reason, &error)
            })?;
            let created = worker.run_sandbox(objects, pod, sandbox).await;
            created.map(|_id| ())
        }
        (PodStep::PublishToRuntime { sandbox }, Some(_)) => {
            let published = operations::publish_to_runtime(sandbox, &started.runtime_mounts).await;
            return published
                .map_err(|error| report_failure(context, regarding, "FailedMount", &error));
        }
        (PodStep::StartContainer(start), Some(pod)) => {
            let sources = mount_sources(context, objects, pod, &start.name, started).await;
            let sources = sources
                .map_err(|error| report_failure(context, regarding, "FailedMount", &error))?;
            worker.start_container(pod, start, &sources).await
        }
        // Nothing is created for a pod without a manifest.
        (_, None) => Ok(()),
    };
    result.map_err(|error| Failure::from(&error))
}

/// Emits an event about a failed step, and returns the failure for the pod's status.
fn report_failure(
    context: &Context,
    regarding: &Regarding,
    reason: &'static str,
    error: &OperationError,
) -> Failure {
    let message = crust_state::error_message(error);
    let events = &context.events;
    events.warning(regarding.clone(), reason, message.clone());
    Failure {
        reason: Failure::CONFIG_ERROR,
        message,
        is_pull: false,
    }
}

/// Returns the sources of a container's volumes, in the order of its `volumeMounts`.
async fn mount_sources(
    context: &Context,
    objects: &Arc<Objects>,
    pod: &Arc<Pod>,
    name: &str,
    started: &StartedStep,
) -> Result<Vec<MountSource>, OperationError> {
    let container = pod.containers().find(|container| container.name == name);
    let missing = || OperationError::Other(format!("the pod has no container {name:?}"));
    let container = container.ok_or_else(missing)?;
    let mut requests = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let mut volumes = pod.spec.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name);
        let resolved = volume.map(|volume| resolve(objects, pod, volume));
        let volume_kind = match resolved.transpose()? {
            Some(ResolvedVolume::Csi(spec)) => {
                // Without this check the container runtime would create the missing directory, and the workload would
                // write to the host's disk.
                let id = &spec.volume.id;
                let mounted = started.mounted.get(id);
                let mounted = mounted.filter(|mounted| mounted.directory == spec.volume.directory);
                let mounted = mounted.ok_or_else(|| OperationError::NotPublished(id.clone()))?;
                VolumeKind::Csi {
                    by_runtime: mounted.mounter != Mounter::Driver,
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
                    .and_then(|context| context.fs_group),
            },
            Some(ResolvedVolume::HostPath(path)) => VolumeKind::HostPath {
                path,
                kind: volume
                    .and_then(|volume| volume.host_path.as_ref()?.type_.clone())
                    .unwrap_or_default(),
            },
            // Unreachable: a mount without a volume is refused when the manifest is read.
            None => continue,
        };
        let subpath = config::subpath(pod, &started.node, container, mount)?;
        requests.push(PathRequest {
            volume: volume_kind,
            subpath,
        });
    }
    let (layout, uid, name) = (context.layout.clone(), pod.uid.clone(), name.to_owned());
    let paths =
        operations::blocking(move || operations::mount_sources(&layout, &uid, &name, &requests));
    let sources = paths.await?.into_iter().map(|resolved| MountSource {
        host_path: resolved.path,
        read_only: resolved.read_only,
    });
    Ok(sources.collect())
}
