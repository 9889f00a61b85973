//! A pod's `status.conditions`.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};

use super::{Phase, StatusInputs, is_initialized, to_time};

/// The reason and the message of a condition that is false.
type FalseReason = (&'static str, Option<String>);

/// Computes a pod's conditions from the statuses of its containers.
pub(super) fn conditions(
    inputs: &StatusInputs<'_>,
    phase: Phase,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Vec<PodCondition> {
    let initialized = uninitialized(inputs, phase, init);
    let ready = unready(phase, containers);
    vec![
        condition(inputs, "PodScheduled", None),
        condition(inputs, "Initialized", initialized),
        condition(inputs, "ContainersReady", ready.clone()),
        condition(inputs, "Ready", ready),
    ]
}

fn uninitialized(
    inputs: &StatusInputs<'_>,
    phase: Phase,
    init: &[ContainerStatus],
) -> Option<FalseReason> {
    let is_done = inputs
        .observed
        .is_some_and(|observed| is_initialized(inputs.pod, observed));
    if init.is_empty() || is_done || phase == Phase::Succeeded {
        return None;
    }
    let message = format!("containers with incomplete status: {}", unready_names(init));
    Some(("ContainersNotInitialized", Some(message)))
}

fn unready(phase: Phase, containers: &[ContainerStatus]) -> Option<FalseReason> {
    match phase {
        Phase::Succeeded => return Some(("PodCompleted", None)),
        Phase::Failed => return Some(("PodFailed", None)),
        Phase::Pending | Phase::Running => {}
    }
    if containers.iter().all(|container| container.ready) {
        return None;
    }
    let message = format!(
        "containers with unready status: {}",
        unready_names(containers)
    );
    Some(("ContainersNotReady", Some(message)))
}

/// Formats the names of containers that are not ready: `[app other]`.
fn unready_names(containers: &[ContainerStatus]) -> String {
    let names = containers.iter().filter(|container| !container.ready);
    let names: Vec<&str> = names.map(|container| container.name.as_str()).collect();
    format!("[{}]", names.join(" "))
}

fn condition(
    inputs: &StatusInputs<'_>,
    kind: &str,
    false_reason: Option<FalseReason>,
) -> PodCondition {
    let status = if false_reason.is_none() {
        "True"
    } else {
        "False"
    };
    let mut previous = inputs
        .previous
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let unchanged =
        previous.find(|condition| condition.type_ == kind && condition.status == status);
    let since = unchanged.and_then(|condition| condition.last_transition_time.clone());
    let (reason, message) = false_reason.unzip();
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message: message.flatten(),
        last_transition_time: since.or_else(|| to_time(inputs.now)),
        ..PodCondition::default()
    }
}
