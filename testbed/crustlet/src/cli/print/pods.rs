//! The table of pods, and a pod in a few words by kubectl's rules.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::cells::{NONE, name, or};
use super::{Column, KindTable, Row, typed};
use crate::cli::age;

/// kubectl's columns; but the runtime class is there where nodes that were nominated and gates would be: what
/// schedules and what waits for these is no part of a node.
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
    let ip = status.and_then(|it| it.pod_ips.as_ref()?.first()?.ip.as_str().into());
    let ip = ip.or_else(|| status.and_then(|it| it.pod_ip.as_deref()));
    Ok(vec![vec![
        name(&pod.metadata),
        summary.ready,
        summary.status,
        summary.restarts,
        age::since(now, pod.metadata.creation_timestamp.as_ref()),
        or(ip, NONE),
        or(spec.and_then(|it| it.node_name.as_deref()), NONE),
        or(spec.and_then(|it| it.runtime_class_name.as_deref()), NONE),
    ]])
}

/// A pod's READY, STATUS and RESTARTS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Summary {
    /// `1/2`
    pub(in crate::cli) ready: String,
    /// `Running`, `Init:0/1`, `CrashLoopBackOff`, …
    pub(in crate::cli) status: String,
    /// `0`, `3 (5m ago)`
    pub(in crate::cli) restarts: String,
}

/// Returns the summary of a pod at a moment.
pub(in crate::cli) fn summary(pod: &Pod, now: SystemTime) -> Summary {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let init = Init::of(spec, status);
    let is_begun = init.unfinished.is_none() || has_condition(status, "Initialized");
    let containers = || status.container_statuses.iter().flatten();
    let (ready, restarts) = if is_begun {
        let mut restarts = init.sidecars;
        containers().for_each(|it| restarts.add(it));
        (
            init.ready + containers().filter(|it| is_ready(it)).count(),
            restarts,
        )
    } else {
        (init.ready, init.restarts)
    };
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let words = if pod.metadata.deletion_timestamp.is_some() && !is_over {
        "Terminating".to_owned()
    } else {
        let phase = said(status.reason.as_deref()).or(status.phase.as_deref());
        let before = init.unfinished;
        let before = before.unwrap_or_else(|| phase.unwrap_or_default().to_owned());
        if is_begun {
            words_of(status, before)
        } else {
            before
        }
    };
    let sidecars = spec.init_containers.iter().flatten();
    let all = spec.containers.len() + sidecars.filter(|it| is_sidecar(it)).count();
    Summary {
        ready: format!("{ready}/{all}"),
        status: words,
        restarts: restarts.told(now),
    }
}

/// Returns the words of the first container that has any. That one has completed doesn't count while others run.
fn words_of(status: &PodStatus, before: String) -> String {
    let mut containers = status.container_statuses.iter().flatten();
    let words = containers.clone().find_map(word_of).unwrap_or(before);
    if words != "Completed" || !containers.any(is_ready) {
        words
    } else if has_condition(status, "Ready") {
        "Running".to_owned()
    } else {
        "NotReady".to_owned()
    }
}

/// A summary of the init containers.
#[derive(Debug, Default)]
struct Init {
    /// The words of the first one that isn't done.
    unfinished: Option<String>,
    /// Sidecars that are.
    ready: usize,
    /// The restarts of all, up to the one that isn't done.
    restarts: Restarts,
    /// The restarts of those that run as long as the pod.
    sidecars: Restarts,
}

impl Init {
    fn of(spec: &PodSpec, status: &PodStatus) -> Self {
        let specs = || spec.init_containers.iter().flatten();
        let mut init = Self::default();
        for (at, container) in status.init_container_statuses.iter().flatten().enumerate() {
            let sidecar = specs().any(|it| it.name == container.name && is_sidecar(it));
            init.restarts.add(container);
            if sidecar {
                init.sidecars.add(container);
            }
            let state = container.state.as_ref();
            let terminated = state.and_then(|it| it.terminated.as_ref());
            let waiting = state.and_then(|it| it.waiting.as_ref());
            let waits = said(waiting.and_then(|it| it.reason.as_deref()));
            match (terminated, waits) {
                (Some(it), _) if it.exit_code == 0 => continue,
                _ if sidecar && container.started == Some(true) => {
                    init.ready += usize::from(container.ready);
                    continue;
                }
                (Some(it), _) => init.unfinished = Some(format!("Init:{}", ended(it))),
                (None, Some(reason)) if reason != "PodInitializing" => {
                    init.unfinished = Some(format!("Init:{reason}"));
                }
                _ => init.unfinished = Some(format!("Init:{at}/{}", specs().count())),
            }
            break;
        }
        init
    }
}

/// How often containers have been started again, and when the last one ended.
#[derive(Debug, Default, Clone)]
struct Restarts {
    count: i32,
    last: Option<Time>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        let before = container.last_state.as_ref();
        let before = before.and_then(|it| it.terminated.as_ref());
        self.count = self.count.saturating_add(container.restart_count);
        self.last = before
            .and_then(|it| it.finished_at.clone())
            .max(self.last.take());
    }

    fn told(&self, now: SystemTime) -> String {
        match &self.last {
            Some(last) if self.count > 0 => {
                format!("{} ({} ago)", self.count, age::since(now, Some(last)))
            }
            _ => self.count.to_string(),
        }
    }
}

/// Returns the reason for which a container doesn't run, if it has one.
fn word_of(container: &ContainerStatus) -> Option<String> {
    let ContainerState {
        terminated,
        waiting,
        ..
    } = container.state.as_ref()?;
    let waits = said(waiting.as_ref().and_then(|it| it.reason.as_deref()));
    let waits = waits.map(str::to_owned);
    waits.or_else(|| terminated.as_ref().map(ended))
}

fn ended(container: &ContainerStateTerminated) -> String {
    let signal = container.signal.filter(|it| *it != 0);
    match (said(container.reason.as_deref()), signal) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", container.exit_code),
    }
}

fn is_ready(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    container.ready && state.is_some_and(|it| it.running.is_some())
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Whether a condition is told of, and true.
fn has_condition(status: &PodStatus, name: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|it| it.type_ == name && it.status == "True")
}

fn said(text: Option<&str>) -> Option<&str> {
    text.filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests;
