//! The failed steps of a pod, and the delays before their retries.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::StepSubject;
use crate::volumes::backoff::Backoff;

/// The first and the longest delay before a step is retried. kubelet retries every ten seconds; the first retries are
/// sooner because many failures pass quickly.
const STEP_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The first and the longest delay after a failed pull. kubelet has the same two delays.
const PULL_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// The failure of a step of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// kubelet's reason, such as `CreateContainerError` or `ErrImagePull`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Whether an image couldn't be pulled.
    pub(crate) is_pull: bool,
}

impl Failure {
    /// kubelet's reason for a configuration that is invalid or not supported.
    pub(crate) const CONFIG_ERROR: &'static str = "CreateContainerConfigError";
}

/// The failures of a pod's steps. A failure is kept until a step for the same subject succeeds.
#[derive(Debug)]
pub(crate) struct Failures {
    last: BTreeMap<StepSubject, Failure>,
    steps: Backoff<StepSubject>,
    pulls: Backoff<StepSubject>,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            last: BTreeMap::new(),
            steps: Backoff::new(STEP_BACKOFF.0, STEP_BACKOFF.1),
            pulls: Backoff::new(PULL_BACKOFF.0, PULL_BACKOFF.1),
        }
    }
}

/// The subjects of failed steps that must not be retried yet, with the time until their retries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RetryDelays(pub(crate) BTreeMap<StepSubject, Duration>);

impl Failures {
    pub(crate) fn fail(&mut self, subject: StepSubject, failure: Failure, now: Instant) {
        let backoff = if failure.is_pull {
            &mut self.pulls
        } else {
            &mut self.steps
        };
        backoff.fail(&subject, now);
        self.last.insert(subject, failure);
    }

    /// Records a successful step.
    pub(crate) fn succeed(&mut self, subject: &StepSubject) {
        self.last.remove(subject);
        self.steps.succeed(subject);
        self.pulls.succeed(subject);
    }

    /// Returns the last failure for a subject, if no step has succeeded since.
    pub(crate) fn get(&self, subject: &StepSubject) -> Option<&Failure> {
        self.last.get(subject)
    }

    /// Returns the subjects that must not be retried yet.
    pub(crate) fn retry_delays(&self, now: Instant) -> RetryDelays {
        let subjects = self.last.keys().filter_map(|subject| {
            let remaining =
                [&self.steps, &self.pulls].map(|backoff| backoff.remaining(subject, now));
            Some((subject.clone(), remaining.into_iter().flatten().max()?))
        });
        RetryDelays(subjects.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(is_pull: bool) -> Failure {
        Failure {
            reason: "Reason",
            message: String::new(),
            is_pull,
        }
    }

    #[test]
    fn a_failed_pull_is_retried_later_than_other_steps() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let [app, other] = ["app", "other"].map(|name| StepSubject::Container(name.to_owned()));
        failures.fail(app.clone(), failure(true), now);
        failures.fail(other.clone(), failure(false), now);
        let mut retry_delays = BTreeMap::from([
            (app.clone(), Duration::from_secs(10)),
            (other.clone(), Duration::from_secs(1)),
        ]);
        assert_eq!(failures.retry_delays(now).0, retry_delays);
        let later = now + Duration::from_secs(1);
        retry_delays.remove(&other);
        retry_delays.insert(app.clone(), Duration::from_secs(9));
        assert_eq!(failures.retry_delays(later).0, retry_delays);
        assert!(failures.get(&other).is_some(), "no step has succeeded yet");
        failures.succeed(&app);
        failures.succeed(&other);
        assert_eq!(failures.retry_delays(now), RetryDelays::default());
        assert_eq!(failures.get(&app), None);
    }
}
