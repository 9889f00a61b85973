//! The `status` of a pod, as kubelet writes it.

mod conditions;
mod container;

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{ContainerStatus, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::config::resources;
use super::failures::{Failures, RetryDelays};
use super::observed::{ObservedContainer, ObservedPod, RunState};
use super::restart::{PodOutcome, outcome};
use crate::objects::Pod;

/// The inputs of a pod's status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatusInputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) observed: Option<&'a ObservedPod>,
    pub(crate) failures: &'a Failures,
    /// The subjects whose steps must not be retried yet.
    pub(crate) retry_delays: &'a RetryDelays,
    /// Whether the pod is ending. No container is then started again.
    pub(crate) is_ending: bool,
    /// The container runtime's name, which is part of container IDs.
    pub(crate) runtime: &'a str,
    /// The previous status. The times of unchanged states and conditions are taken from it.
    pub(crate) previous: Option<&'a PodStatus>,
    pub(crate) now: SystemTime,
}

pub(crate) fn status(inputs: &StatusInputs<'_>) -> PodStatus {
    let StatusInputs { pod, observed, .. } = *inputs;
    let phase = Phase::from_inputs(inputs);
    let statuses_of = |containers: &[k8s_openapi::api::core::v1::Container], is_init| {
        let statuses = containers.iter();
        let statuses = statuses.map(|spec| container::status(inputs, spec, is_init));
        statuses.collect::<Vec<ContainerStatus>>()
    };
    let init = pod.spec.init_containers.as_deref();
    let init = init.map(|containers| statuses_of(containers, true));
    let containers = statuses_of(&pod.spec.containers, false);
    let sandboxes = observed
        .map(|observed| observed.sandboxes.as_slice())
        .unwrap_or_default();
    let address = sandboxes.first().filter(|sandbox| sandbox.is_ready);
    let address = address.and_then(|address| address.address.clone());
    let started = sandboxes.iter().map(|sandbox| sandbox.started).min();
    let started = started.and_then(to_time);
    PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions::conditions(
            inputs,
            phase,
            init.as_deref().unwrap_or_default(),
            &containers,
        )),
        init_container_statuses: init,
        container_statuses: Some(containers),
        pod_ips: address.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: address,
        qos_class: Some(resources::qos_class(pod).as_str().to_owned()),
        start_time: started
            .or_else(|| inputs.previous.and_then(|status| status.start_time.clone())),
        ..PodStatus::default()
    }
}

/// An event about a container that has begun to back off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackOffEvent {
    pub(crate) message: String,
    /// Whether the container waits for its image.
    pub(crate) is_pull: bool,
}

/// Returns an event for each container that has begun to back off since the previous status, for the first time or
/// after another attempt.
pub(crate) fn back_offs(
    pod: &Pod,
    previous: Option<&PodStatus>,
    current: &PodStatus,
) -> Vec<BackOffEvent> {
    let reason_and_restarts = |status: &ContainerStatus| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone()?;
        Some((reason, status.restart_count))
    };
    let previous_wait = |name: &str| {
        let status = containers(previous?).find(|status| status.name == name)?;
        reason_and_restarts(status)
    };
    let events = containers(current).filter_map(|status| {
        let name = &status.name;
        let (reason, restarts) = reason_and_restarts(status)?;
        if previous_wait(name) == Some((reason.clone(), restarts)) {
            return None;
        }
        match reason.as_str() {
            container::CRASH_LOOP => Some(BackOffEvent {
                message: format!(
                    "Back-off restarting failed container {name} in pod {}",
                    full_name(pod)
                ),
                is_pull: false,
            }),
            container::PULL_LOOP => Some(BackOffEvent {
                message: format!("Back-off pulling image {:?}", status.image),
                is_pull: true,
            }),
            _ => None,
        }
    });
    events.collect()
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten()
}

/// Formats a pod's name as kubelet's messages do: `NAME_NAMESPACE(UID)`.
fn full_name(pod: &Pod) -> String {
    format!("{}_{}({})", pod.name.name, pod.name.namespace, pod.uid)
}

/// Converts a time to Kubernetes' form, which has whole seconds. `None` if that form can't express the time.
fn to_time(time: SystemTime) -> Option<Time> {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let seconds = i64::try_from(since_epoch.as_secs()).ok()?;
    Timestamp::from_second(seconds).ok().map(Time)
}

/// Formats a duration as Go does: `10s`, `1m20s`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    fn from_inputs(inputs: &StatusInputs<'_>) -> Self {
        let Some(observed) = inputs.observed else {
            return Self::Pending;
        };
        match outcome(inputs.pod, observed) {
            Some(PodOutcome::Succeeded) => return Self::Succeeded,
            Some(PodOutcome::Failed) => return Self::Failed,
            None => {}
        }
        let has_run = |latest: &ObservedContainer| {
            latest.state != RunState::Created || observed.previous(latest).is_some()
        };
        let mut containers = inputs.pod.spec.containers.iter();
        let all_have_run =
            containers.all(|container| observed.latest(&container.name).is_some_and(has_run));
        if all_have_run && is_initialized(inputs.pod, observed) {
            Self::Running
        } else {
            Self::Pending
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Returns whether all init containers have succeeded in the newest sandbox. That is also so if an app container exists
/// in it, because init containers that have ended may have been removed since.
fn is_initialized(pod: &Pod, observed: &ObservedPod) -> bool {
    let Some(sandbox) = observed.sandboxes.first() else {
        return false;
    };
    let latest = |name: &str| observed.latest_in(&sandbox.id, name);
    let is_done =
        |container: &ObservedContainer| container.exit().is_some_and(|exit| exit.code == 0);
    let mut containers = pod.spec.containers.iter();
    let mut init = pod.spec.init_containers.iter().flatten();
    containers.any(|container| latest(&container.name).is_some())
        || init.all(|container| latest(&container.name).is_some_and(is_done))
}

#[cfg(test)]
mod tests;
