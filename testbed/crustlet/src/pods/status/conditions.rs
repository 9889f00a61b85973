//! `status.conditions`

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};

use super::{Phase, StatusInputs, is_initialized, time};

/// A false condition: its reason and message.
type Lack = (&'static str, Option<String>);

/// A pod's, by the states of its containers.
pub(super) fn of(
    look: &StatusInputs<'_>,
    phase: Phase,
    first: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Vec<PodCondition> {
    let initialized = uninitialized(look, phase, first);
    let ready = unready(phase, containers);
    vec![
        condition(look, "PodScheduled", None),
        condition(look, "Initialized", initialized),
        condition(look, "ContainersReady", ready.clone()),
        condition(look, "Ready", ready),
    ]
}

fn uninitialized(look: &StatusInputs<'_>, phase: Phase, first: &[ContainerStatus]) -> Option<Lack> {
    let is_done = look.observed.is_some_and(|it| is_initialized(look.pod, it));
    if first.is_empty() || is_done || phase == Phase::Succeeded {
        return None;
    }
    let message = format!("containers with incomplete status: {}", unready_of(first));
    Some(("ContainersNotInitialized", Some(message)))
}

fn unready(phase: Phase, containers: &[ContainerStatus]) -> Option<Lack> {
    match phase {
        Phase::Succeeded => return Some(("PodCompleted", None)),
        Phase::Failed => return Some(("PodFailed", None)),
        Phase::Pending | Phase::Running => {}
    }
    if containers.iter().all(|it| it.ready) {
        return None;
    }
    let message = format!("containers with unready status: {}", unready_of(containers));
    Some(("ContainersNotReady", Some(message)))
}

/// `[app other]`
fn unready_of(containers: &[ContainerStatus]) -> String {
    let names = containers.iter().filter(|it| !it.ready);
    let names: Vec<&str> = names.map(|it| it.name.as_str()).collect();
    format!("[{}]", names.join(" "))
}

fn condition(look: &StatusInputs<'_>, kind: &str, lack: Option<Lack>) -> PodCondition {
    let status = if lack.is_none() { "True" } else { "False" };
    let mut before = look
        .before
        .iter()
        .flat_map(|it| it.conditions.iter().flatten());
    let same = before.find(|it| it.type_ == kind && it.status == status);
    let since = same.and_then(|it| it.last_transition_time.clone());
    let (reason, message) = lack.unzip();
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message: message.flatten(),
        last_transition_time: since.or_else(|| time(look.now)),
        ..PodCondition::default()
    }
}
