//! The status of a container.

use k8s_openapi::api::core::v1::{
    Container as ContainerSpec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus,
};

use super::{StatusInputs, full_name, go_duration, is_initialized, to_time};
use crate::pods::StepSubject;
use crate::pods::failures::Failure;
use crate::pods::observed::{ContainerExit, ObservedContainer, ObservedPod, RunState};
use crate::pods::restart::{RestartPolicy, backoff, outcome, remaining_backoff};

/// kubelet's reason for a container that backs off before its next start.
pub(super) const CRASH_LOOP: &str = "CrashLoopBackOff";
/// kubelet's reason for a container that backs off before its image is pulled again.
pub(super) const PULL_LOOP: &str = "ImagePullBackOff";

/// Computes the status of a container. `is_init` is true for an init container.
pub(super) fn status(
    inputs: &StatusInputs<'_>,
    spec: &ContainerSpec,
    is_init: bool,
) -> ContainerStatus {
    let not_created = ContainerStatus {
        name: spec.name.clone(),
        image: spec.image.clone().unwrap_or_default(),
        started: Some(false),
        ..ContainerStatus::default()
    };
    let found = inputs
        .observed
        .and_then(|observed| Some((observed, observed.latest(&spec.name)?)));
    let Some((observed, latest)) = found else {
        return ContainerStatus {
            state: Some(not_created_state(inputs, spec)),
            ..not_created
        };
    };
    let previous_state = || {
        observed
            .previous(latest)
            .and_then(|previous| terminated_state(inputs, previous))
    };
    let (state, last_state) = match &latest.state {
        RunState::Created => (not_created_state(inputs, spec), previous_state()),
        RunState::Running { since } => {
            let running = ContainerStateRunning {
                started_at: to_time(*since),
            };
            let state = ContainerState {
                running: Some(running),
                ..ContainerState::default()
            };
            (state, previous_state())
        }
        RunState::Exited(exit) if is_init && exit.code == 0 => (
            terminated_state(inputs, latest).unwrap_or_default(),
            previous_state(),
        ),
        RunState::Exited(exit) => match waiting_for_restart(inputs, spec, observed, latest, exit) {
            Some(waiting) => (waiting, terminated_state(inputs, latest)),
            None => (
                terminated_state(inputs, latest).unwrap_or_default(),
                previous_state(),
            ),
        },
        RunState::Unknown => (unknown_state(inputs, latest), previous_state()),
    };
    let is_running = state.running.is_some();
    let has_succeeded = state
        .terminated
        .as_ref()
        .is_some_and(|terminated| terminated.exit_code == 0);
    ContainerStatus {
        ready: if is_init { has_succeeded } else { is_running },
        started: Some(is_running),
        restart_count: i32::try_from(latest.attempt).unwrap_or(i32::MAX),
        container_id: Some(full_id(inputs, latest)),
        image_id: latest.image_id.clone(),
        state: Some(state),
        last_state,
        ..not_created
    }
}

/// Returns the state of a container that has ended and waits for its next start. `None` if the container isn't started
/// again, or can be started now.
fn waiting_for_restart(
    inputs: &StatusInputs<'_>,
    spec: &ContainerSpec,
    observed: &ObservedPod,
    latest: &ObservedContainer,
    exit: &ContainerExit,
) -> Option<ContainerState> {
    let has_pod_ended = || inputs.is_ending || outcome(inputs.pod, observed).is_some();
    if !RestartPolicy::from_pod(inputs.pod).restarts(exit) || has_pod_ended() {
        return None;
    }
    if remaining_backoff(latest, inputs.now).is_some() {
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(backoff(latest, exit)),
            spec.name,
            full_name(inputs.pod)
        );
        return Some(waiting_state(CRASH_LOOP, Some(message)));
    }
    let failure = inputs
        .failures
        .get(&StepSubject::Container(spec.name.clone()))?;
    Some(failed_state(inputs, spec, failure))
}

/// Returns the state of a container that hasn't been created yet.
fn not_created_state(inputs: &StatusInputs<'_>, spec: &ContainerSpec) -> ContainerState {
    if let Some(failure) = inputs
        .failures
        .get(&StepSubject::Container(spec.name.clone()))
    {
        return failed_state(inputs, spec, failure);
    }
    let has_init = inputs
        .pod
        .spec
        .init_containers
        .iter()
        .flatten()
        .next()
        .is_some();
    let is_initialized = inputs
        .observed
        .is_some_and(|observed| is_initialized(inputs.pod, observed));
    let reason = if has_init && !is_initialized {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    match inputs.failures.get(&StepSubject::Sandbox) {
        // While the configuration is invalid or not supported, no container is created.
        Some(failure) if failure.reason == Failure::CONFIG_ERROR => {
            waiting_state(failure.reason, Some(failure.message.clone()))
        }
        failure => waiting_state(reason, failure.map(|failure| failure.message.clone())),
    }
}

fn failed_state(
    inputs: &StatusInputs<'_>,
    spec: &ContainerSpec,
    failure: &Failure,
) -> ContainerState {
    let is_delayed = inputs
        .retry_delays
        .0
        .contains_key(&StepSubject::Container(spec.name.clone()));
    if failure.is_pull && is_delayed {
        let image = spec.image.as_deref().unwrap_or_default();
        let message = format!(
            "Back-off pulling image {image:?}: {}: {}",
            failure.reason, failure.message
        );
        return waiting_state(PULL_LOOP, Some(message));
    }
    waiting_state(failure.reason, Some(failure.message.clone()))
}

fn waiting_state(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn terminated_state(
    inputs: &StatusInputs<'_>,
    container: &ObservedContainer,
) -> Option<ContainerState> {
    let exit = container.exit()?;
    let non_empty = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Some(terminated(ContainerStateTerminated {
        container_id: Some(full_id(inputs, container)),
        exit_code: exit.code,
        reason: non_empty(&exit.reason),
        message: non_empty(&exit.message),
        started_at: exit.started.and_then(to_time),
        finished_at: to_time(exit.finished),
        ..ContainerStateTerminated::default()
    }))
}

/// Returns the state that kubelet reports for a container whose state is unknown.
fn unknown_state(inputs: &StatusInputs<'_>, container: &ObservedContainer) -> ContainerState {
    terminated(ContainerStateTerminated {
        container_id: Some(full_id(inputs, container)),
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container runtime doesn't know the state of the container".to_owned()),
        ..ContainerStateTerminated::default()
    })
}

fn terminated(terminated: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    }
}

/// Returns a container's ID in the form `containerd://…`.
fn full_id(inputs: &StatusInputs<'_>, container: &ObservedContainer) -> String {
    format!("{}://{}", inputs.runtime, container.id)
}
