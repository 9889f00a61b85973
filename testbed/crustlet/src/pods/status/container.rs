//! `status` of a container.

use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus,
};

use super::{StatusInputs, full_name, go_duration, is_initialized, time};
use crate::pods::Subject;
use crate::pods::failures::Failure;
use crate::pods::observed::{Container, Exit, Observed, State};
use crate::pods::restart::{Policy, outcome, pause, remaining};

/// kubelet's reason of a container that waits for its next start.
pub(super) const CRASH_LOOP: &str = "CrashLoopBackOff";
/// kubelet's reason of a container that waits for its image.
pub(super) const PULL_LOOP: &str = "ImagePullBackOff";

/// A container's; `is_first`: it is one of those that begin the pod.
pub(super) fn status(look: &StatusInputs<'_>, spec: &Spec, is_first: bool) -> ContainerStatus {
    let none = ContainerStatus {
        name: spec.name.clone(),
        image: spec.image.clone().unwrap_or_default(),
        started: Some(false),
        ..ContainerStatus::default()
    };
    let found = look
        .observed
        .and_then(|it| Some((it, it.latest(&spec.name)?)));
    let Some((observed, latest)) = found else {
        return ContainerStatus {
            state: Some(waiting(look, spec)),
            ..none
        };
    };
    let earlier = || observed.before(latest).and_then(|it| ended(look, it));
    let (state, last_state) = match &latest.state {
        State::Created => (waiting(look, spec), earlier()),
        State::Running { since } => {
            let running = ContainerStateRunning {
                started_at: time(*since),
            };
            let state = ContainerState {
                running: Some(running),
                ..ContainerState::default()
            };
            (state, earlier())
        }
        State::Exited(exit) if is_first && exit.code == 0 => {
            (ended(look, latest).unwrap_or_default(), earlier())
        }
        State::Exited(exit) => match again(look, spec, observed, latest, exit) {
            Some(waiting) => (waiting, ended(look, latest)),
            None => (ended(look, latest).unwrap_or_default(), earlier()),
        },
        State::Unknown => (lost(look, latest), earlier()),
    };
    let is_running = state.running.is_some();
    let has_succeeded = state
        .terminated
        .as_ref()
        .is_some_and(|it| it.exit_code == 0);
    ContainerStatus {
        ready: if is_first { has_succeeded } else { is_running },
        started: Some(is_running),
        restart_count: i32::try_from(latest.attempt).unwrap_or(i32::MAX),
        container_id: Some(full_id(look, latest)),
        image_id: latest.image_id.clone(),
        state: Some(state),
        last_state,
        ..none
    }
}

/// Returns what a container waits for that has ended and will be started again; `None` if it won't be.
fn again(
    look: &StatusInputs<'_>,
    spec: &Spec,
    observed: &Observed,
    latest: &Container,
    exit: &Exit,
) -> Option<ContainerState> {
    let is_over = || look.is_ending || outcome(look.pod, observed).is_some();
    if !Policy::of(look.pod).restarts(exit) || is_over() {
        return None;
    }
    if remaining(latest, look.now).is_some() {
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(pause(latest, exit)),
            spec.name,
            full_name(look.pod)
        );
        return Some(wait(CRASH_LOOP, Some(message)));
    }
    let failure = look.failures.of(&Subject::Container(spec.name.clone()))?;
    Some(failed(look, spec, failure))
}

/// Returns the state of a container that doesn't exist yet.
fn waiting(look: &StatusInputs<'_>, spec: &Spec) -> ContainerState {
    if let Some(failure) = look.failures.of(&Subject::Container(spec.name.clone())) {
        return failed(look, spec, failure);
    }
    let has_first = look
        .pod
        .spec
        .init_containers
        .iter()
        .flatten()
        .next()
        .is_some();
    let is_initialized = look.observed.is_some_and(|it| is_initialized(look.pod, it));
    let reason = if has_first && !is_initialized {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    match look.failures.of(&Subject::Sandbox) {
        // Of what a pod can't have nothing is tried.
        Some(failure) if failure.reason == Failure::CONFIG => {
            wait(failure.reason, Some(failure.message.clone()))
        }
        failure => wait(reason, failure.map(|it| it.message.clone())),
    }
}

fn failed(look: &StatusInputs<'_>, spec: &Spec, failure: &Failure) -> ContainerState {
    let is_held = look
        .held
        .0
        .contains_key(&Subject::Container(spec.name.clone()));
    if failure.is_pull && is_held {
        let image = spec.image.as_deref().unwrap_or_default();
        let message = format!(
            "Back-off pulling image {image:?}: {}: {}",
            failure.reason, failure.message
        );
        return wait(PULL_LOOP, Some(message));
    }
    wait(failure.reason, Some(failure.message.clone()))
}

fn wait(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn ended(look: &StatusInputs<'_>, container: &Container) -> Option<ContainerState> {
    let exit = container.exit()?;
    let said = |text: &String| Some(text.clone()).filter(|it| !it.is_empty());
    Some(terminated(ContainerStateTerminated {
        container_id: Some(full_id(look, container)),
        exit_code: exit.code,
        reason: said(&exit.reason),
        message: said(&exit.message),
        started_at: exit.started.and_then(time),
        finished_at: time(exit.finished),
        ..ContainerStateTerminated::default()
    }))
}

/// Returns the state that kubelet reports for a container whose end is unknown.
fn lost(look: &StatusInputs<'_>, container: &Container) -> ContainerState {
    terminated(ContainerStateTerminated {
        container_id: Some(full_id(look, container)),
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container runtime can't tell what became of it".to_owned()),
        ..ContainerStateTerminated::default()
    })
}

fn terminated(terminated: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    }
}

/// `containerd://…`
fn full_id(look: &StatusInputs<'_>, container: &Container) -> String {
    format!("{}://{}", look.runtime, container.id)
}
