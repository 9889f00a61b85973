//! The `status` of a pod, as kubelet writes it.

mod conditions;
mod container;

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{ContainerStatus, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::config::resources;
use super::failures::{Failures, RetryDelays};
use super::observed::{Container, Observed, State};
use super::restart::{Outcome, outcome};
use crate::objects::Pod;

/// The inputs of a status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatusInputs<'a> {
    pub(crate) pod: &'a Pod,
    /// The pod's state in the container runtime.
    pub(crate) observed: Option<&'a Observed>,
    /// The failures of its steps.
    pub(crate) failures: &'a Failures,
    /// The steps that aren't retried now.
    pub(crate) held: &'a RetryDelays,
    /// Whether it was asked to end: nothing of it is started again.
    pub(crate) is_ending: bool,
    /// The container runtime's name, which is part of containers' ids.
    pub(crate) runtime: &'a str,
    /// The status before this one: what hasn't changed is as old as it says.
    pub(crate) before: Option<&'a PodStatus>,
    /// The time.
    pub(crate) now: SystemTime,
}

/// A pod's.
pub(crate) fn status(look: &StatusInputs<'_>) -> PodStatus {
    let StatusInputs { pod, observed, .. } = *look;
    let phase = Phase::of(look);
    let of = |containers: &[k8s_openapi::api::core::v1::Container], is_first| {
        let statuses = containers.iter();
        let statuses = statuses.map(|it| container::status(look, it, is_first));
        statuses.collect::<Vec<ContainerStatus>>()
    };
    let first = pod.spec.init_containers.as_deref();
    let first = first.map(|containers| of(containers, true));
    let containers = of(&pod.spec.containers, false);
    let sandboxes = observed
        .map(|it| it.sandboxes.as_slice())
        .unwrap_or_default();
    let address = sandboxes.first().filter(|it| it.is_ready);
    let address = address.and_then(|it| it.address.clone());
    let started = sandboxes.iter().map(|it| it.started).min();
    let started = started.and_then(time);
    PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions::of(
            look,
            phase,
            first.as_deref().unwrap_or_default(),
            &containers,
        )),
        init_container_statuses: first,
        container_statuses: Some(containers),
        pod_ips: address.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: address,
        qos_class: Some(resources::qos(pod).as_str().to_owned()),
        start_time: started.or_else(|| look.before.and_then(|it| it.start_time.clone())),
        ..PodStatus::default()
    }
}

/// A container is left alone for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackOff {
    /// In a sentence.
    pub(crate) message: String,
    /// Whether it is its image that it waits for.
    pub(crate) is_pull: bool,
}

/// Returns the containers of a pod that have begun to wait for their next start since the status before.
pub(crate) fn back_offs(pod: &Pod, before: Option<&PodStatus>, now: &PodStatus) -> Vec<BackOff> {
    let waits = |status: &ContainerStatus| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone()?;
        Some((reason, status.restart_count))
    };
    let earlier = |name: &str| {
        let status = containers(before?).find(|it| it.name == name)?;
        waits(status)
    };
    let told = containers(now).filter_map(|status| {
        let name = &status.name;
        let (reason, restarts) = waits(status)?;
        if earlier(name).as_ref() == Some(&(reason.clone(), restarts)) {
            return None;
        }
        match reason.as_str() {
            container::CRASH_LOOP => Some(BackOff {
                message: format!(
                    "Back-off restarting failed container {name} in pod {}",
                    full_name(pod)
                ),
                is_pull: false,
            }),
            container::PULL_LOOP => Some(BackOff {
                message: format!("Back-off pulling image {:?}", status.image),
                is_pull: true,
            }),
            _ => None,
        }
    });
    told.collect()
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten()
}

/// Returns a pod's name as kubelet writes it in messages.
fn full_name(pod: &Pod) -> String {
    format!("{}_{}({})", pod.name.name, pod.name.namespace, pod.uid)
}

/// In whole seconds, as Kubernetes' times are.
fn time(moment: SystemTime) -> Option<Time> {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let seconds = i64::try_from(since.as_secs()).ok()?;
    Timestamp::from_second(seconds).ok().map(Time)
}

/// Writes a duration as Go does: `10s`, `1m20s`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}

/// `status.phase`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    fn of(look: &StatusInputs<'_>) -> Self {
        let Some(observed) = look.observed else {
            return Self::Pending;
        };
        match outcome(look.pod, observed) {
            Some(Outcome::Succeeded) => return Self::Succeeded,
            Some(Outcome::Failed) => return Self::Failed,
            None => {}
        }
        let has_run = |latest: &Container| {
            latest.state != State::Created || observed.before(latest).is_some()
        };
        let mut containers = look.pod.spec.containers.iter();
        let all = containers.all(|it| observed.latest(&it.name).is_some_and(has_run));
        if all && is_initialized(look.pod, observed) {
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

/// Whether the containers that begin it are done, in its last sandbox.
fn is_initialized(pod: &Pod, observed: &Observed) -> bool {
    let Some(sandbox) = observed.sandboxes.first() else {
        return false;
    };
    let here = |name: &str| observed.latest_in(&sandbox.id, name);
    let is_done = |it: &Container| it.exit().is_some_and(|exit| exit.code == 0);
    let mut containers = pod.spec.containers.iter();
    let mut first = pod.spec.init_containers.iter().flatten();
    containers.any(|it| here(&it.name).is_some())
        || first.all(|it| here(&it.name).is_some_and(is_done))
}

#[cfg(test)]
mod tests;
