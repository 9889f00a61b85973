//! The table of pods, and the summary of a pod by kubectl's rules.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::cells::{NONE, name, text_or};
use super::{Column, KindTable, Row, typed};
use crate::cli::age;

/// kubectl's columns, except that RUNTIMECLASS replaces NOMINATED NODE and READINESS GATES: there is no scheduler, and
/// crustlet ignores readiness gates.
pub(super) const PODS: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("READY", Column::Always),
        ("STATUS", Column::Always),
        ("RESTARTS", Column::Always),
        ("AGE", Column::Always),
        ("IP", Column::Wide),
        ("NODE", Column::Wide),
        ("RUNTIMECLASS", Column::Wide),
    ],
    rows,
};

fn rows(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let pod: Pod = typed(document)?;
    let summary = summary(&pod, now);
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let ip = status.and_then(|status| status.pod_ips.as_ref()?.first()?.ip.as_str().into());
    let ip = ip.or_else(|| status.and_then(|status| status.pod_ip.as_deref()));
    Ok(vec![vec![
        name(&pod.metadata),
        summary.ready,
        summary.status,
        summary.restarts,
        age::since(now, pod.metadata.creation_timestamp.as_ref()),
        text_or(ip, NONE),
        text_or(spec.and_then(|spec| spec.node_name.as_deref()), NONE),
        text_or(
            spec.and_then(|spec| spec.runtime_class_name.as_deref()),
            NONE,
        ),
    ]])
}

/// A pod's READY, STATUS and RESTARTS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Summary {
    /// The number of ready containers and of all containers: `1/2`.
    pub(in crate::cli) ready: String,
    /// The phase or a reason: `Running`, `Init:0/1`, `CrashLoopBackOff` and so on.
    pub(in crate::cli) status: String,
    /// The number of restarts, and the age of the last one: `0`, `3 (5m ago)`.
    pub(in crate::cli) restarts: String,
}

/// Summarises a pod. Ages are relative to `now`.
pub(in crate::cli) fn summary(pod: &Pod, now: SystemTime) -> Summary {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let init = InitSummary::new(spec, status);
    let is_initialized = init.unfinished.is_none() || has_condition(status, "Initialized");
    let containers = || status.container_statuses.iter().flatten();
    let (ready, restarts) = if is_initialized {
        let mut restarts = init.sidecar_restarts;
        containers().for_each(|container| restarts.add(container));
        (
            init.ready + containers().filter(|container| is_ready(container)).count(),
            restarts,
        )
    } else {
        (init.ready, init.restarts)
    };
    let is_terminal = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let status_text = if pod.metadata.deletion_timestamp.is_some() && !is_terminal {
        "Terminating".to_owned()
    } else {
        let phase = non_empty(status.reason.as_deref()).or(status.phase.as_deref());
        let text = init.unfinished;
        let text = text.unwrap_or_else(|| phase.unwrap_or_default().to_owned());
        if is_initialized {
            container_reason(status, text)
        } else {
            text
        }
    };
    let sidecars = spec.init_containers.iter().flatten();
    let total = spec.containers.len() + sidecars.filter(|sidecar| is_sidecar(sidecar)).count();
    Summary {
        ready: format!("{ready}/{total}"),
        status: status_text,
        restarts: restarts.format(now),
    }
}

/// Returns the reason of the first container with a reason, or the default. `Completed` is replaced while another
/// container is running.
fn container_reason(status: &PodStatus, default: String) -> String {
    let mut containers = status.container_statuses.iter().flatten();
    let reason = containers
        .clone()
        .find_map(not_running_reason)
        .unwrap_or(default);
    if reason != "Completed" || !containers.any(is_ready) {
        reason
    } else if has_condition(status, "Ready") {
        "Running".to_owned()
    } else {
        "NotReady".to_owned()
    }
}

#[derive(Debug, Default)]
struct InitSummary {
    /// The status text of the first container that hasn't finished. `None` if all have.
    unfinished: Option<String>,
    /// The number of sidecars that are ready.
    ready: usize,
    /// The restarts of all containers up to and including the unfinished one.
    restarts: Restarts,
    /// The restarts of sidecars.
    sidecar_restarts: Restarts,
}

impl InitSummary {
    fn new(spec: &PodSpec, status: &PodStatus) -> Self {
        let specs = || spec.init_containers.iter().flatten();
        let mut init = Self::default();
        let statuses = status.init_container_statuses.iter().flatten();
        for (index, container) in statuses.enumerate() {
            let is_sidecar = specs().any(|spec| spec.name == container.name && is_sidecar(spec));
            init.restarts.add(container);
            if is_sidecar {
                init.sidecar_restarts.add(container);
            }
            let state = container.state.as_ref();
            let terminated = state.and_then(|state| state.terminated.as_ref());
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let reason = non_empty(waiting.and_then(|waiting| waiting.reason.as_deref()));
            match (terminated, reason) {
                (Some(terminated), _) if terminated.exit_code == 0 => continue,
                _ if is_sidecar && container.started == Some(true) => {
                    init.ready += usize::from(container.ready);
                    continue;
                }
                (Some(terminated), _) => {
                    init.unfinished = Some(format!("Init:{}", termination_reason(terminated)));
                }
                (None, Some(reason)) if reason != "PodInitializing" => {
                    init.unfinished = Some(format!("Init:{reason}"));
                }
                _ => init.unfinished = Some(format!("Init:{index}/{}", specs().count())),
            }
            break;
        }
        init
    }
}

/// The number of restarts of containers, and the time when the last one ended.
#[derive(Debug, Default, Clone)]
struct Restarts {
    count: i32,
    last: Option<Time>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        let last_run = container.last_state.as_ref();
        let last_run = last_run.and_then(|last_run| last_run.terminated.as_ref());
        self.count = self.count.saturating_add(container.restart_count);
        self.last = last_run
            .and_then(|last_run| last_run.finished_at.clone())
            .max(self.last.take());
    }

    fn format(&self, now: SystemTime) -> String {
        match &self.last {
            Some(last) if self.count > 0 => {
                format!("{} ({} ago)", self.count, age::since(now, Some(last)))
            }
            _ => self.count.to_string(),
        }
    }
}

/// Returns the reason why a container isn't running, if it has one.
fn not_running_reason(container: &ContainerStatus) -> Option<String> {
    let ContainerState {
        terminated,
        waiting,
        ..
    } = container.state.as_ref()?;
    let reason = non_empty(
        waiting
            .as_ref()
            .and_then(|waiting| waiting.reason.as_deref()),
    );
    let reason = reason.map(str::to_owned);
    reason.or_else(|| terminated.as_ref().map(termination_reason))
}

fn termination_reason(container: &ContainerStateTerminated) -> String {
    let signal = container.signal.filter(|signal| *signal != 0);
    match (non_empty(container.reason.as_deref()), signal) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", container.exit_code),
    }
}

fn is_ready(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    container.ready && state.is_some_and(|state| state.running.is_some())
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns whether the pod has a condition whose status is `True`.
fn has_condition(status: &PodStatus, name: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == name && condition.status == "True")
}

fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
