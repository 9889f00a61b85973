//! The failed steps of a pod, and the delays before they are retried.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Subject;
use crate::volumes::backoff::Backoff;

/// kubelet tries each ten seconds. What is soon mended is tried again sooner.
const STEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// kubelet's, of a registry that doesn't give an image.
const PULL: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// The failure of a step of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// In one word, as kubelet's: `CreateContainerError`, `ErrImagePull`.
    pub(crate) reason: &'static str,
    /// In a sentence.
    pub(crate) message: String,
    /// Whether it is a registry's.
    pub(crate) is_pull: bool,
}

impl Failure {
    /// kubelet's reason where a pod asks for what it can't have.
    pub(crate) const CONFIG: &'static str = "CreateContainerConfigError";
}

/// A pod's, each until what it is about works.
#[derive(Debug)]
pub(crate) struct Failures {
    told: BTreeMap<Subject, Failure>,
    steps: Backoff<Subject>,
    pulls: Backoff<Subject>,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            told: BTreeMap::new(),
            steps: Backoff::new(STEP.0, STEP.1),
            pulls: Backoff::new(PULL.0, PULL.1),
        }
    }
}

/// The steps that have failed, with the time before each is retried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RetryDelays(pub(crate) BTreeMap<Subject, Duration>);

impl Failures {
    /// It failed (again).
    pub(crate) fn fail(&mut self, subject: Subject, failure: Failure, now: Instant) {
        let backoff = if failure.is_pull {
            &mut self.pulls
        } else {
            &mut self.steps
        };
        backoff.fail(&subject, now);
        self.told.insert(subject, failure);
    }

    /// It worked.
    pub(crate) fn succeed(&mut self, subject: &Subject) {
        self.told.remove(subject);
        self.steps.succeed(subject);
        self.pulls.succeed(subject);
    }

    /// Returns the last failure of a subject.
    pub(crate) fn of(&self, subject: &Subject) -> Option<&Failure> {
        self.told.get(subject)
    }

    /// Returns the steps that aren't retried now.
    pub(crate) fn held(&self, now: Instant) -> RetryDelays {
        let subjects = self.told.keys().filter_map(|subject| {
            let remaining = [&self.steps, &self.pulls].map(|it| it.remaining(subject, now));
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
    fn failed_pulls_are_held_longer_and_others_are_not() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let [app, other] = ["app", "other"].map(|it| Subject::Container(it.to_owned()));
        failures.fail(app.clone(), failure(true), now);
        failures.fail(other.clone(), failure(false), now);
        let mut held = BTreeMap::from([
            (app.clone(), Duration::from_secs(10)),
            (other.clone(), Duration::from_secs(1)),
        ]);
        assert_eq!(failures.held(now).0, held);
        let later = now + Duration::from_secs(1);
        held.remove(&other);
        held.insert(app.clone(), Duration::from_secs(9));
        assert_eq!(failures.held(later).0, held);
        assert!(failures.of(&other).is_some(), "it didn't work yet");
        failures.succeed(&app);
        failures.succeed(&other);
        assert_eq!(failures.held(now), RetryDelays::default());
        assert_eq!(failures.of(&app), None);
    }
}
