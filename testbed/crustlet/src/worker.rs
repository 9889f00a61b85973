//! Carries out a pod's step in the container runtime, with kubelet's events.

mod error;
mod images;
mod logs;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crust_state::error_message;
use k8s_openapi::api::core::v1::{Container, PodStatus};
use tokio::task::JoinSet;

use crate::cri::{Cri, CriError};
use crate::events::{Events, Regarding};
use crate::objects::{Objects, Pod};
use crate::pods::config::{self, ConfigError, MountSource, NodeInfo};
use crate::pods::status::{BackOffEvent, back_offs};
use crate::pods::{EndStep, RunSandbox, StartContainer};

pub(crate) use error::StepError;

/// Carries out the steps of pods. Clones use the same container runtime.
#[derive(Debug, Clone)]
pub(crate) struct PodWorker {
    cri: Cri,
    events: Events,
    node: Arc<NodeInfo>,
}

impl PodWorker {
    pub(crate) fn new(cri: Cri, events: Events, node: Arc<NodeInfo>) -> Self {
        Self { cri, events, node }
    }

    /// Creates a pod's sandbox. Returns its ID.
    pub(crate) async fn run_sandbox(
        &self,
        objects: &Objects,
        pod: &Pod,
        step: &RunSandbox,
    ) -> Result<String, StepError> {
        if step.attempt > 0 {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.events.normal(pod, "SandboxChanged", message);
        } else {
            self.warn_about_ignored_fields(pod);
        }
        let created = self.create_sandbox(objects, pod, step).await;
        if let Err(error) = &created {
            let message = format!("Failed to create pod sandbox: {}", error_message(error));
            self.events.warning(pod, "FailedCreatePodSandBox", message);
        }
        created
    }

    async fn create_sandbox(
        &self,
        objects: &Objects,
        pod: &Pod,
        step: &RunSandbox,
    ) -> Result<String, StepError> {
        config::check(pod, &self.node)?;
        let runtime_handler = config::runtime_handler(objects, pod)?;
        let started = step.started.unwrap_or_else(SystemTime::now);
        let sandbox = config::sandbox(pod, &self.node, step.attempt, started)?;
        logs::create_directory(&self.node.pod_logs_dir(&pod.name, &pod.uid))?;
        for previous in &step.stop {
            let stopped = self.cri.stop_sandbox(previous).await;
            stopped.map_err(StepError::Sandbox)?;
        }
        let created = self.cri.run_sandbox(sandbox, &runtime_handler).await;
        created.map_err(StepError::Sandbox)
    }

    /// Emits an event about the fields of a pod that are ignored. Called only for the pod's first sandbox.
    fn warn_about_ignored_fields(&self, pod: &Pod) {
        let ignored = config::ignored(pod);
        if !ignored.is_empty() {
            self.events.warning(pod, "Unsupported", ignored.join("; "));
        }
    }

    /// Creates and starts a container of a pod. `sources` has the sources of its `volumeMounts`, in their order.
    pub(crate) async fn start_container(
        &self,
        pod: &Pod,
        step: &StartContainer,
        sources: &[MountSource],
    ) -> Result<(), StepError> {
        let mut containers = pod.containers();
        let Some(container) = containers.find(|container| container.name == step.name) else {
            // The manifest has changed since the step was decided.
            return Ok(());
        };
        let started = self.create_container(pod, container, step, sources).await;
        if let Err(error) = &started {
            // An event with the details of the image error was emitted already.
            let message = match error.image_error_reason() {
                Some(reason) => format!("Error: {reason}"),
                None => format!("Error: {}", error_message(error)),
            };
            self.events.warning(pod, "Failed", message);
        }
        started
    }

    async fn create_container(
        &self,
        pod: &Pod,
        container: &Container,
        step: &StartContainer,
        sources: &[MountSource],
    ) -> Result<(), StepError> {
        let name = &container.name;
        let image = self.ensure_image(pod, container).await?;
        let node = &self.node;
        let new = config::NewContainer {
            container,
            step,
            image: &image,
            sources,
        };
        let config = config::container(pod, node, new)?;
        // The runtime needs only the log directory of the sandbox's configuration, so the start time doesn't matter.
        let sandbox = config::sandbox(pod, node, step.sandbox_attempt, SystemTime::now())?;
        let log = config::log_path(name, step.attempt);
        let logs = node.pod_logs_dir(&pod.name, &pod.uid).join(log);
        logs::create_directory(logs.parent().unwrap_or(&logs))?;
        let created = self
            .cri
            .create_container(&step.sandbox, config, sandbox)
            .await;
        let id = created.map_err(StepError::Create)?;
        self.events
            .normal(pod, "Created", format!("Created container: {name}"));
        let started = self.cri.start_container(&id).await;
        started.map_err(StepError::Start)?;
        self.events
            .normal(pod, "Started", format!("Started container {name}"));
        Ok(())
    }

    /// Stops or removes containers and sandboxes of a pod.
    pub(crate) async fn end(&self, pod: &Regarding, step: &EndStep) -> Result<(), StepError> {
        match step {
            EndStep::StopPod {
                containers,
                sandboxes,
                grace,
            } => {
                let result = self.stop_pod(pod, containers, sandboxes, *grace).await;
                if let Err(error) = &result {
                    let message = format!("error killing pod: {}", error_message(error));
                    self.events.warning(pod.clone(), "FailedKillPod", message);
                }
                result
            }
            EndStep::StopContainer { id, name, grace } => {
                self.emit_killing(pod, name);
                end_result(self.cri.stop_container(id, *grace).await)
            }
            EndStep::RemoveContainer { id, name, attempt } => {
                end_result(self.cri.remove_container(id).await)?;
                let logs = self.node.pod_logs_dir(&pod.name, &pod.uid);
                logs::remove_file(&logs.join(config::log_path(name, *attempt)))
            }
            EndStep::RemoveSandbox { id } => self.remove_sandboxes(std::slice::from_ref(id)).await,
            EndStep::RemovePod {
                containers,
                sandboxes,
            } => {
                let mut errors = Vec::new();
                for id in containers {
                    errors.extend(self.cri.remove_container(id).await.err());
                }
                fail_on_any(errors)?;
                self.remove_sandboxes(sandboxes).await
            }
        }
    }

    /// Stops containers and then sandboxes. Continues after an error, and returns all errors.
    async fn stop_pod(
        &self,
        pod: &Regarding,
        containers: &[(String, String)],
        sandboxes: &[String],
        grace: Duration,
    ) -> Result<(), StepError> {
        let mut stops = JoinSet::new();
        for (id, name) in containers {
            self.emit_killing(pod, name);
            let (cri, id) = (self.cri.clone(), id.clone());
            stops.spawn(async move { cri.stop_container(&id, grace).await });
        }
        let stopped = stops.join_all().await;
        let mut errors: Vec<CriError> = stopped.into_iter().filter_map(Result::err).collect();
        for sandbox in sandboxes {
            errors.extend(self.cri.stop_sandbox(sandbox).await.err());
        }
        fail_on_any(errors)
    }

    /// Stops and removes sandboxes. A sandbox that ended by itself has to be stopped, too, because it still has its
    /// network.
    async fn remove_sandboxes(&self, ids: &[String]) -> Result<(), StepError> {
        let mut errors = Vec::new();
        for id in ids {
            let removed = match self.cri.stop_sandbox(id).await {
                Ok(()) => self.cri.remove_sandbox(id).await,
                error => error,
            };
            errors.extend(removed.err());
        }
        fail_on_any(errors)
    }

    /// Removes the logs of a pod that has ended.
    pub(crate) fn remove_logs(&self, uid: &str) -> Result<(), StepError> {
        logs::remove_pod_logs(&self.node.logs, uid)
    }

    fn emit_killing(&self, pod: &Regarding, container: &str) {
        let message = format!("Stopping container {container}");
        self.events.normal(pod.clone(), "Killing", message);
    }

    /// Emits an event for each container that has begun to back off since the previous status.
    pub(crate) fn emit_back_offs(
        &self,
        pod: &Pod,
        previous: Option<&PodStatus>,
        current: &PodStatus,
    ) {
        for BackOffEvent { message, is_pull } in back_offs(pod, previous, current) {
            if is_pull {
                self.events.normal(pod, "BackOff", message);
            } else {
                self.events.warning(pod, "BackOff", message);
            }
        }
    }
}

fn end_result(result: Result<(), CriError>) -> Result<(), StepError> {
    fail_on_any(result.err().into_iter().collect())
}

fn fail_on_any(errors: Vec<CriError>) -> Result<(), StepError> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(StepError::End(errors))
    }
}

impl From<ConfigError> for StepError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}
