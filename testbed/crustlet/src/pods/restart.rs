//! Decides whether a container that has ended is started again, and when.

use std::time::{Duration, SystemTime};

use super::observed::{Container, Exit, Observed};
use crate::objects::Pod;

/// The first delay of kubelet's `CrashLoopBackOff`.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// The running time after which a container's delay begins anew.
const LONG_ENOUGH: Duration = Duration::from_secs(600);

/// `restartPolicy`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Whatever it ended with.
    Always,
    /// After anything but success.
    OnFailure,
    /// Not again.
    Never,
}

impl Policy {
    /// A pod's. One that nobody knows was refused before.
    pub(crate) fn of(pod: &Pod) -> Self {
        match pod.spec.restart_policy.as_deref() {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }

    /// Whether a container that ended so is started again.
    pub(crate) const fn restarts(self, exit: &Exit) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit.code != 0,
            Self::Never => false,
        }
    }
}

/// How a pod ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All its containers with 0.
    Succeeded,
    /// One of them didn't.
    Failed,
}

/// How a pod ended, if nothing of it will be started again.
pub(crate) fn outcome(pod: &Pod, observed: &Observed) -> Option<Outcome> {
    let policy = Policy::of(pod);
    let exit = |name: &str| observed.latest(name).and_then(Container::exit);
    let mut first = pod.spec.init_containers.iter().flatten();
    if policy == Policy::Never && first.any(|it| exit(&it.name).is_some_and(|it| it.code != 0)) {
        return Some(Outcome::Failed);
    }
    let mut outcome = Outcome::Succeeded;
    for container in &pod.spec.containers {
        let exit = exit(&container.name).filter(|it| !policy.restarts(it))?;
        if exit.code != 0 {
            outcome = Outcome::Failed;
        }
    }
    Some(outcome)
}

/// How long a container that ended still has to wait until it is started again; none when it may be.
pub(crate) fn remaining(ended: &Container, now: SystemTime) -> Option<Duration> {
    let exit = ended.exit()?;
    let pause = pause(ended, exit);
    // A clock that was put back makes no pause longer.
    let since = now.duration_since(exit.finished).unwrap_or_default();
    pause.checked_sub(since).filter(|it| !it.is_zero())
}

/// How long it waits in all.
pub(crate) fn pause(ended: &Container, exit: &Exit) -> Duration {
    if ran_long(exit) {
        Duration::ZERO
    } else {
        ended.backoff.min(LONGEST)
    }
}

/// Returns the delay after the container that is started next. It is kept with the container, so that it survives a
/// restart of crustlet.
pub(crate) fn next_backoff(before: Option<&Container>) -> Duration {
    let Some(before) = before else {
        return Duration::ZERO;
    };
    if before.backoff.is_zero() || before.exit().is_some_and(ran_long) {
        return FIRST;
    }
    // It was read from the runtime, which may tell any number.
    before.backoff.saturating_mul(2).min(LONGEST)
}

fn ran_long(exit: &Exit) -> bool {
    let since = exit.started;
    since.is_some_and(|since| {
        let ran = exit.finished.duration_since(since);
        ran.is_ok_and(|it| it >= LONG_ENOUGH)
    })
}
