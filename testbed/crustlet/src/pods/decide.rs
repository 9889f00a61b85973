//! Decides the next step of a pod from its desired and its observed state.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1;

use super::failures::RetryDelays;
use super::observed::{ObservedContainer, ObservedPod, ObservedSandbox, RunState};
use super::restart::{RestartPolicy, next_backoff, outcome, remaining_backoff};
use super::{EndStep, PodStep, RunSandbox, StartContainer};
use crate::objects::Pod;

/// The shortest time between the creation of a sandbox and that of its replacement.
const SANDBOX_DELAY: Duration = Duration::from_secs(2);

/// The desired state of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PodGoal<'a> {
    Run {
        pod: &'a Pod,
        /// Whether all of the pod's volumes are mounted, except those that the runtime handler mounts in the sandbox.
        volumes_ready: bool,
        /// The sandboxes in which the runtime handler has mounted the pod's volumes. `None` if the runtime handler has
        /// no volumes to mount.
        published_sandboxes: Option<&'a BTreeSet<String>>,
    },
    /// End the pod. Nothing is started any more.
    End {
        /// The time that the containers have to end.
        grace: Duration,
    },
}

/// The decision about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextAction {
    Step(PodStep),
    /// Decide again after this time.
    Wait(Duration),
    /// Decide again when something has changed.
    Idle,
}

/// Decides the next step of a pod. `observed` has to be read after the last step has ended. `retry_delays` has the
/// subjects whose steps have failed.
pub(crate) fn next(
    goal: PodGoal<'_>,
    observed: Option<&ObservedPod>,
    retry_delays: &RetryDelays,
    now: SystemTime,
) -> NextAction {
    let mut chooser = StepChooser {
        retry_delays,
        now,
        wait: None,
    };
    let step = match (goal, observed) {
        (PodGoal::End { .. }, None) => None,
        (PodGoal::End { grace }, Some(observed)) => chooser.end(observed, grace),
        (
            PodGoal::Run {
                pod,
                volumes_ready,
                published_sandboxes,
            },
            observed,
        ) => chooser.run(pod, volumes_ready, published_sandboxes, observed),
    };
    match (step, chooser.wait) {
        (Some(step), _) => NextAction::Step(step),
        (None, Some(wait)) => NextAction::Wait(wait),
        (None, None) => NextAction::Idle,
    }
}

struct StepChooser<'a> {
    retry_delays: &'a RetryDelays,
    now: SystemTime,
    wait: Option<Duration>,
}

impl StepChooser<'_> {
    fn wait(&mut self, pause: Duration) {
        self.wait = Some(self.wait.map_or(pause, |wait| wait.min(pause)));
    }

    /// Returns the step, unless its subject has failed and must not be retried yet.
    fn unless_delayed(&mut self, step: PodStep) -> Option<PodStep> {
        if let Some(pause) = self.retry_delays.0.get(&step.subject()) {
            self.wait(*pause);
            return None;
        }
        Some(step)
    }

    fn end(&mut self, observed: &ObservedPod, grace: Duration) -> Option<PodStep> {
        if !observed.is_stopped() {
            return self.unless_delayed(stop_pod(observed, grace));
        }
        let containers = observed
            .containers
            .iter()
            .map(|container| container.id.clone());
        let sandboxes = observed.sandboxes.iter().map(|sandbox| sandbox.id.clone());
        self.unless_delayed(PodStep::End(EndStep::RemovePod {
            containers: containers.collect(),
            sandboxes: sandboxes.collect(),
        }))
    }

    fn run(
        &mut self,
        pod: &Pod,
        volumes_ready: bool,
        published_sandboxes: Option<&BTreeSet<String>>,
        observed: Option<&ObservedPod>,
    ) -> Option<PodStep> {
        let Some(observed) = observed else {
            return volumes_ready
                .then(|| self.unless_delayed(run_sandbox(None)))
                .flatten();
        };
        if outcome(pod, observed).is_some() {
            // The pod has ended, so its sandbox is stopped and other pods may use its volumes. The latest containers
            // are kept because they show how the pod ended.
            return if observed.is_stopped() {
                self.remove_old(observed)
            } else {
                self.unless_delayed(stop_pod(observed, observed.grace()))
            };
        }
        if !volumes_ready {
            return None;
        }
        let Some(current) = current_sandbox(observed) else {
            // Containers in an older sandbox, or in one of two ready sandboxes, are stopped together with all
            // sandboxes.
            return if observed.is_stopped() {
                self.remove_old(observed)
                    .or_else(|| self.new_sandbox(observed))
            } else {
                self.unless_delayed(stop_pod(observed, observed.grace()))
            };
        };
        if published_sandboxes.is_some_and(|published| !published.contains(&current.id)) {
            let sandbox = current.id.clone();
            return self.unless_delayed(PodStep::PublishToRuntime { sandbox });
        }
        self.containers(pod, observed, current)
            .or_else(|| self.remove_old(observed))
    }

    /// Replaces the sandbox. If the last sandbox was just created, waits first, so that sandboxes that end at once
    /// aren't replaced in a tight loop.
    fn new_sandbox(&mut self, observed: &ObservedPod) -> Option<PodStep> {
        let newest = observed.sandboxes.first();
        let age = newest.and_then(|newest| self.now.duration_since(newest.created).ok());
        match age.and_then(|age| SANDBOX_DELAY.checked_sub(age)) {
            Some(pause) if !pause.is_zero() => {
                self.wait(pause);
                None
            }
            _ => self.unless_delayed(run_sandbox(Some(observed))),
        }
    }

    fn containers(
        &mut self,
        pod: &Pod,
        observed: &ObservedPod,
        current: &ObservedSandbox,
    ) -> Option<PodStep> {
        let is_known = |container: &&ObservedContainer| {
            pod.containers().any(|known| known.name == container.name)
        };
        if let Some(other) = observed.alive().find(|container| !is_known(container)) {
            return self.unless_delayed(stop_container(other, observed));
        }
        let policy = RestartPolicy::from_pod(pod);
        let is_created =
            |container: &v1::Container| observed.latest_in(&current.id, &container.name).is_some();
        // Init containers run one after another, and again in each sandbox. Once an app container exists, all of them
        // have succeeded, even if they were removed since.
        if !pod.spec.containers.iter().any(is_created) {
            for container in pod.spec.init_containers.iter().flatten() {
                let name = &container.name;
                let latest = observed.latest_in(&current.id, name);
                let is_done = |container: &ObservedContainer| {
                    container.exit().is_some_and(|exit| exit.code == 0)
                };
                if latest.is_some_and(is_done) {
                    continue;
                }
                return match latest {
                    None => {
                        self.unless_delayed(start_container(name, observed.latest(name), current))
                    }
                    Some(latest) => self.restart(latest, policy, observed, current),
                };
            }
        }
        pod.spec.containers.iter().find_map(|container| {
            let name = &container.name;
            match observed.latest(name) {
                None => self.unless_delayed(start_container(name, None, current)),
                Some(latest) => self.restart(latest, policy, observed, current),
            }
        })
    }

    /// Decides the step for an existing container. Returns `None` for a running one.
    fn restart(
        &mut self,
        latest: &ObservedContainer,
        policy: RestartPolicy,
        observed: &ObservedPod,
        current: &ObservedSandbox,
    ) -> Option<PodStep> {
        match &latest.state {
            // crustlet stopped between creating and starting the container. That attempt doesn't count.
            RunState::Created => self.unless_delayed(remove_container(latest)),
            RunState::Unknown => self.unless_delayed(stop_container(latest, observed)),
            RunState::Exited(exit) if policy.restarts(exit) => {
                match remaining_backoff(latest, self.now) {
                    Some(pause) => {
                        self.wait(pause);
                        None
                    }
                    None => {
                        self.unless_delayed(start_container(&latest.name, Some(latest), current))
                    }
                }
            }
            RunState::Running { .. } | RunState::Exited(_) => None,
        }
    }

    /// Removes an old container or sandbox. For each name, the newest container is kept for its log, and also the
    /// previous container while the newest one hasn't ended.
    fn remove_old(&mut self, observed: &ObservedPod) -> Option<PodStep> {
        let is_kept = |container: &ObservedContainer| {
            let latest = observed.latest(&container.name);
            let previous = latest.and_then(|latest| {
                if latest.exit().is_some() {
                    None
                } else {
                    observed.previous(latest)
                }
            });
            [latest, previous]
                .into_iter()
                .flatten()
                .any(|kept| kept.id == container.id)
        };
        let mut containers = observed.containers.iter();
        if let Some(old) = containers.find(|container| !container.is_alive() && !is_kept(container))
        {
            return self.unless_delayed(remove_container(old));
        }
        let is_empty = |sandbox: &&ObservedSandbox| {
            let mut containers = observed.containers.iter();
            !sandbox.is_ready && !containers.any(|container| container.sandbox == sandbox.id)
        };
        let old = observed.sandboxes.iter().skip(1).find(is_empty)?;
        let id = old.id.clone();
        self.unless_delayed(PodStep::End(EndStep::RemoveSandbox { id }))
    }
}

/// Returns the newest sandbox if it is the only ready sandbox and contains all containers that may have processes.
fn current_sandbox(observed: &ObservedPod) -> Option<&ObservedSandbox> {
    let (newest, older) = observed.sandboxes.split_first()?;
    let is_only_ready = newest.is_ready && !older.iter().any(|sandbox| sandbox.is_ready);
    let is_outside = |container: &ObservedContainer| container.sandbox != newest.id;
    (is_only_ready && !observed.alive().any(is_outside)).then_some(newest)
}

fn run_sandbox(observed: Option<&ObservedPod>) -> PodStep {
    let previous = observed
        .map(|pod| pod.sandboxes.as_slice())
        .unwrap_or_default();
    let next_attempt = previous.iter().map(|sandbox| sandbox.attempt + 1).max();
    PodStep::RunSandbox(RunSandbox {
        attempt: next_attempt.unwrap_or(0),
        stop: previous.iter().map(|sandbox| sandbox.id.clone()).collect(),
        started: previous.iter().map(|sandbox| sandbox.started).min(),
    })
}

fn start_container(
    name: &str,
    previous: Option<&ObservedContainer>,
    sandbox: &ObservedSandbox,
) -> PodStep {
    PodStep::StartContainer(StartContainer {
        name: name.to_owned(),
        attempt: previous.map_or(0, |container| container.attempt + 1),
        sandbox: sandbox.id.clone(),
        sandbox_attempt: sandbox.attempt,
        backoff: next_backoff(previous),
    })
}

fn stop_pod(observed: &ObservedPod, grace: Duration) -> PodStep {
    let alive = observed
        .alive()
        .map(|container| (container.id.clone(), container.name.clone()));
    PodStep::End(EndStep::StopPod {
        containers: alive.collect(),
        sandboxes: observed
            .sandboxes
            .iter()
            .map(|sandbox| sandbox.id.clone())
            .collect(),
        grace,
    })
}

fn stop_container(container: &ObservedContainer, observed: &ObservedPod) -> PodStep {
    PodStep::End(EndStep::StopContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        grace: observed.grace(),
    })
}

fn remove_container(container: &ObservedContainer) -> PodStep {
    PodStep::End(EndStep::RemoveContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        attempt: container.attempt,
    })
}

#[cfg(test)]
mod tests;
