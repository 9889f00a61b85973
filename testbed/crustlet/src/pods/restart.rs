//! Decides whether a container that has ended is started again, and when.

use std::time::{Duration, SystemTime};

use super::observed::{ContainerExit, ObservedContainer, ObservedPod};
use crate::objects::Pod;

/// The first delay of kubelet's `CrashLoopBackOff`.
const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
/// The longest delay of kubelet's `CrashLoopBackOff`.
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// The running time after which a container's delay starts over from the first delay.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Returns a pod's policy. Unknown policies were refused before.
    pub(crate) fn from_pod(pod: &Pod) -> Self {
        match pod.spec.restart_policy.as_deref() {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }

    /// Returns whether a container that ended this way is started again.
    pub(crate) const fn restarts(self, exit: &ContainerExit) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit.code != 0,
            Self::Never => false,
        }
    }
}

/// The final result of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodOutcome {
    /// All containers have ended with exit code 0.
    Succeeded,
    /// A container has ended with another exit code.
    Failed,
}

/// Returns how a pod ended, or `None` if one of its containers is running or will be started.
pub(crate) fn outcome(pod: &Pod, observed: &ObservedPod) -> Option<PodOutcome> {
    let policy = RestartPolicy::from_pod(pod);
    let exit = |name: &str| observed.latest(name).and_then(ObservedContainer::exit);
    let mut init = pod.spec.init_containers.iter().flatten();
    if policy == RestartPolicy::Never
        && init.any(|container| exit(&container.name).is_some_and(|exit| exit.code != 0))
    {
        return Some(PodOutcome::Failed);
    }
    let mut outcome = PodOutcome::Succeeded;
    for container in &pod.spec.containers {
        let exit = exit(&container.name).filter(|exit| !policy.restarts(exit))?;
        if exit.code != 0 {
            outcome = PodOutcome::Failed;
        }
    }
    Some(outcome)
}

/// Returns the rest of the delay before an ended container is started again. `None` if the delay is over.
pub(crate) fn remaining_backoff(ended: &ObservedContainer, now: SystemTime) -> Option<Duration> {
    let exit = ended.exit()?;
    let backoff = backoff(ended, exit);
    // A clock that was set back doesn't extend the delay.
    let elapsed = now.duration_since(exit.finished).unwrap_or_default();
    let remaining = backoff.checked_sub(elapsed);
    remaining.filter(|remaining| !remaining.is_zero())
}

/// Returns the delay between the end of a container and its next start.
pub(crate) fn backoff(ended: &ObservedContainer, exit: &ContainerExit) -> Duration {
    if ran_long(exit) {
        Duration::ZERO
    } else {
        ended.backoff.min(MAX_BACKOFF)
    }
}

/// Returns the backoff of the container that is started after `previous`: the delay between the end of the new
/// container and the start of its successor. It is recorded with the new container, so that it survives a restart of
/// crustlet.
pub(crate) fn next_backoff(previous: Option<&ObservedContainer>) -> Duration {
    let Some(previous) = previous else {
        return Duration::ZERO;
    };
    if previous.backoff.is_zero() || previous.exit().is_some_and(ran_long) {
        return INITIAL_BACKOFF;
    }
    // The runtime may report a backoff of any length, so the product could overflow.
    previous.backoff.saturating_mul(2).min(MAX_BACKOFF)
}

fn ran_long(exit: &ContainerExit) -> bool {
    exit.started.is_some_and(|started| {
        let running_time = exit.finished.duration_since(started);
        running_time.is_ok_and(|time| time >= BACKOFF_RESET_AFTER)
    })
}
