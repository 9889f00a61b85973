//! Carries out a pod's step in the container runtime, with kubelet's events.

mod error;
mod images;
mod logs;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crust_state::sentence;
use k8s_openapi::api::core::v1::{Container, PodStatus};
use tokio::task::JoinSet;

use crate::cri::{Cri, CriError};
use crate::events::{Events, Regarding};
use crate::objects::{Objects, Pod};
use crate::pods::config::{self, ConfigError, NodeFacts, Source};
use crate::pods::status::{BackOff, back_offs};
use crate::pods::{End, RunSandbox, StartContainer};

pub(crate) use error::StepError;

/// Whoever clones it asks the same runtime.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    cri: Cri,
    events: Events,
    node: Arc<NodeFacts>,
}

impl Worker {
    /// One on a node.
    pub(crate) fn new(cri: Cri, events: Events, node: Arc<NodeFacts>) -> Self {
        Self { cri, events, node }
    }

    /// Makes a pod's sandbox; its id.
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
            self.tell_ignored(pod);
        }
        let made = self.make_sandbox(objects, pod, step).await;
        if let Err(error) = &made {
            let message = format!("Failed to create pod sandbox: {}", sentence(error));
            self.events.warning(pod, "FailedCreatePodSandBox", message);
        }
        made
    }

    async fn make_sandbox(
        &self,
        objects: &Objects,
        pod: &Pod,
        step: &RunSandbox,
    ) -> Result<String, StepError> {
        config::check(pod, &self.node)?;
        let handler = config::handler(objects, pod)?;
        let started = step.started.unwrap_or_else(SystemTime::now);
        let sandbox = config::sandbox(pod, &self.node, step.attempt, started)?;
        logs::make(&self.node.logs_of(&pod.name, &pod.uid))?;
        for before in &step.stop {
            let stopped = self.cri.stop_sandbox(before).await;
            stopped.map_err(StepError::Sandbox)?;
        }
        let made = self.cri.run_sandbox(sandbox, &handler).await;
        made.map_err(StepError::Sandbox)
    }

    /// What a pod asks in vain is told once a sandbox.
    fn tell_ignored(&self, pod: &Pod) {
        let ignored = config::ignored(pod);
        if !ignored.is_empty() {
            self.events.warning(pod, "Unsupported", ignored.join("; "));
        }
    }

    /// Makes a pod's container and starts it; `sources` are those of its `volumeMounts`, in their order.
    pub(crate) async fn start_container(
        &self,
        pod: &Pod,
        step: &StartContainer,
        sources: &[Source],
    ) -> Result<(), StepError> {
        let mut containers = pod.containers();
        let Some(container) = containers.find(|it| it.name == step.name) else {
            // The pod is another one since.
            return Ok(());
        };
        let started = self.make_container(pod, container, step, sources).await;
        if let Err(error) = &started {
            // What is wrong with an image was told by then.
            let message = match error.images_reason() {
                Some(reason) => format!("Error: {reason}"),
                None => format!("Error: {}", sentence(error)),
            };
            self.events.warning(pod, "Failed", message);
        }
        started
    }

    async fn make_container(
        &self,
        pod: &Pod,
        container: &Container,
        step: &StartContainer,
        sources: &[Source],
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
        // Of the sandbox's the runtime reads where logs are, and not when the first one was made.
        let sandbox = config::sandbox(pod, node, step.sandbox_attempt, SystemTime::now())?;
        let log = config::log_path(name, step.attempt);
        let logs = node.logs_of(&pod.name, &pod.uid).join(log);
        logs::make(logs.parent().unwrap_or(&logs))?;
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

    /// Ends something of a pod.
    pub(crate) async fn end(&self, pod: &Regarding, step: &End) -> Result<(), StepError> {
        match step {
            End::StopPod {
                containers,
                sandboxes,
                grace,
            } => {
                let ended = self.stop_pod(pod, containers, sandboxes, *grace).await;
                if let Err(error) = &ended {
                    let message = format!("error killing pod: {}", sentence(error));
                    self.events.warning(pod.clone(), "FailedKillPod", message);
                }
                ended
            }
            End::StopContainer { id, name, grace } => {
                self.tell_killing(pod, name);
                one(self.cri.stop_container(id, *grace).await)
            }
            End::RemoveContainer { id, name, attempt } => {
                one(self.cri.remove_container(id).await)?;
                let logs = self.node.logs_of(&pod.name, &pod.uid);
                logs::remove_file(&logs.join(config::log_path(name, *attempt)))
            }
            End::RemoveSandbox { id } => self.remove_sandboxes(std::slice::from_ref(id)).await,
            End::RemovePod {
                containers,
                sandboxes,
            } => {
                let mut errors = Vec::new();
                for id in containers {
                    errors.extend(self.cri.remove_container(id).await.err());
                }
                all(errors)?;
                self.remove_sandboxes(sandboxes).await
            }
        }
    }

    /// Each goes as far as it can, and all that went wrong is told.
    async fn stop_pod(
        &self,
        pod: &Regarding,
        containers: &[(String, String)],
        sandboxes: &[String],
        grace: Duration,
    ) -> Result<(), StepError> {
        let mut stops = JoinSet::new();
        for (id, name) in containers {
            self.tell_killing(pod, name);
            let (cri, id) = (self.cri.clone(), id.clone());
            stops.spawn(async move { cri.stop_container(&id, grace).await });
        }
        let stopped = stops.join_all().await;
        let mut errors: Vec<CriError> = stopped.into_iter().filter_map(Result::err).collect();
        for sandbox in sandboxes {
            errors.extend(self.cri.stop_sandbox(sandbox).await.err());
        }
        all(errors)
    }

    /// A sandbox that ended by itself has its network still.
    async fn remove_sandboxes(&self, ids: &[String]) -> Result<(), StepError> {
        let mut errors = Vec::new();
        for id in ids {
            let removed = match self.cri.stop_sandbox(id).await {
                Ok(()) => self.cri.remove_sandbox(id).await,
                error => error,
            };
            errors.extend(removed.err());
        }
        all(errors)
    }

    /// Removes the logs of a pod that nothing else is left of.
    pub(crate) fn remove_logs(&self, uid: &str) -> Result<(), StepError> {
        logs::remove_of(&self.node.logs, uid)
    }

    fn tell_killing(&self, pod: &Regarding, container: &str) {
        let message = format!("Stopping container {container}");
        self.events.normal(pod.clone(), "Killing", message);
    }

    /// Tells of containers that are left alone since the status before.
    pub(crate) fn tell_back_offs(&self, pod: &Pod, before: Option<&PodStatus>, now: &PodStatus) {
        for BackOff { message, is_pull } in back_offs(pod, before, now) {
            if is_pull {
                self.events.normal(pod, "BackOff", message);
            } else {
                self.events.warning(pod, "BackOff", message);
            }
        }
    }
}

fn one(ended: Result<(), CriError>) -> Result<(), StepError> {
    all(ended.err().into_iter().collect())
}

fn all(errors: Vec<CriError>) -> Result<(), StepError> {
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
