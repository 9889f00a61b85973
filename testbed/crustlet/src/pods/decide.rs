//! Decides the next step of a pod, from its actual to its desired state.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1;

use super::failures::RetryDelays;
use super::observed::{Container, Observed, Sandbox, State};
use super::restart::{Policy, next_backoff, outcome, remaining};
use super::{End, PodStep, RunSandbox, StartContainer};
use crate::objects::Pod;

/// From one sandbox of a pod's to the next.
const BETWEEN: Duration = Duration::from_secs(2);

/// The desired state of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PodGoal<'a> {
    /// It is to run.
    Run {
        pod: &'a Pod,
        /// Whether its volumes are where its containers will look for them.
        volumes_ready: bool,
        /// The sandboxes for which the runtime handler has mounted the pod's volumes, if it has such volumes.
        told: Option<&'a BTreeSet<String>>,
    },
    /// It is to go, and nothing new is started of it.
    End {
        /// How long its containers have to end.
        grace: Duration,
    },
}

/// The next step of a pod, or how long there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// The step to take now.
    Step(PodStep),
    /// No step for this long.
    Wait(Duration),
    /// No step before something changes.
    Idle,
}

/// Decides the next step of a pod. `observed` was read after its last step had ended; `held` has the steps that failed.
pub(crate) fn next(
    wanted: PodGoal<'_>,
    observed: Option<&Observed>,
    held: &RetryDelays,
    now: SystemTime,
) -> Next {
    let mut choice = Choice {
        held,
        now,
        wait: None,
    };
    let step = match (wanted, observed) {
        (PodGoal::End { .. }, None) => None,
        (PodGoal::End { grace }, Some(observed)) => choice.end(observed, grace),
        (
            PodGoal::Run {
                pod,
                volumes_ready,
                told,
            },
            observed,
        ) => choice.run(pod, volumes_ready, told, observed),
    };
    match (step, choice.wait) {
        (Some(step), _) => Next::Step(step),
        (None, Some(wait)) => Next::Wait(wait),
        (None, None) => Next::Idle,
    }
}

struct Choice<'a> {
    held: &'a RetryDelays,
    now: SystemTime,
    wait: Option<Duration>,
}

impl Choice<'_> {
    fn wait(&mut self, pause: Duration) {
        self.wait = Some(self.wait.map_or(pause, |wait| wait.min(pause)));
    }

    /// A step, unless it failed lately.
    fn offer(&mut self, step: PodStep) -> Option<PodStep> {
        if let Some(pause) = self.held.0.get(&step.subject()) {
            self.wait(*pause);
            return None;
        }
        Some(step)
    }

    fn end(&mut self, observed: &Observed, grace: Duration) -> Option<PodStep> {
        if !observed.is_stopped() {
            return self.offer(stop(observed, grace));
        }
        let containers = observed.containers.iter().map(|it| it.id.clone());
        let sandboxes = observed.sandboxes.iter().map(|it| it.id.clone());
        self.offer(PodStep::End(End::RemovePod {
            containers: containers.collect(),
            sandboxes: sandboxes.collect(),
        }))
    }

    fn run(
        &mut self,
        pod: &Pod,
        volumes_ready: bool,
        told: Option<&BTreeSet<String>>,
        observed: Option<&Observed>,
    ) -> Option<PodStep> {
        let Some(observed) = observed else {
            return volumes_ready.then(|| self.offer(sandbox(None))).flatten();
        };
        if outcome(pod, observed).is_some() {
            // Its volumes are somebody else's to have. What is left tells how it ended.
            return if observed.is_stopped() {
                self.tidy(observed)
            } else {
                self.offer(stop(observed, observed.grace()))
            };
        }
        if !volumes_ready {
            return None;
        }
        let Some(current) = current(observed) else {
            // What lives without its sandbox, or in one of two, goes with it.
            return if observed.is_stopped() {
                self.tidy(observed).or_else(|| self.another(observed))
            } else {
                self.offer(stop(observed, observed.grace()))
            };
        };
        if told.is_some_and(|told| !told.contains(&current.id)) {
            let sandbox = current.id.clone();
            return self.offer(PodStep::PublishToRuntime { sandbox });
        }
        self.containers(pod, observed, current)
            .or_else(|| self.tidy(observed))
    }

    /// A sandbox after those that died; not one after another for one that dies at once.
    fn another(&mut self, observed: &Observed) -> Option<PodStep> {
        let newest = observed.sandboxes.first();
        let age = newest.and_then(|it| self.now.duration_since(it.created).ok());
        match age.and_then(|age| BETWEEN.checked_sub(age)) {
            Some(pause) if !pause.is_zero() => {
                self.wait(pause);
                None
            }
            _ => self.offer(sandbox(Some(observed))),
        }
    }

    fn containers(&mut self, pod: &Pod, observed: &Observed, current: &Sandbox) -> Option<PodStep> {
        let is_known = |it: &&Container| pod.containers().any(|known| known.name == it.name);
        if let Some(other) = observed.alive().find(|it| !is_known(it)) {
            return self.offer(stop_one(other, observed));
        }
        let policy = Policy::of(pod);
        let has_begun = |it: &v1::Container| observed.latest_in(&current.id, &it.name).is_some();
        // One after another, and anew in each sandbox. That they are done is known by what comes after them.
        if !pod.spec.containers.iter().any(has_begun) {
            for container in pod.spec.init_containers.iter().flatten() {
                let name = &container.name;
                let here = observed.latest_in(&current.id, name);
                let is_done = |it: &Container| it.exit().is_some_and(|exit| exit.code == 0);
                if here.is_some_and(is_done) {
                    continue;
                }
                return match here {
                    None => self.offer(start(name, observed.latest(name), current)),
                    Some(here) => self.again(here, policy, observed, current),
                };
            }
        }
        pod.spec.containers.iter().find_map(|container| {
            let name = &container.name;
            match observed.latest(name) {
                None => self.offer(start(name, None, current)),
                Some(latest) => self.again(latest, policy, observed, current),
            }
        })
    }

    /// Decides the step for a container that isn't running.
    fn again(
        &mut self,
        latest: &Container,
        policy: Policy,
        observed: &Observed,
        current: &Sandbox,
    ) -> Option<PodStep> {
        match &latest.state {
            // Whoever made it ended before it was started. It counts for none.
            State::Created => self.offer(remove(latest)),
            State::Unknown => self.offer(stop_one(latest, observed)),
            State::Exited(exit) if policy.restarts(exit) => match remaining(latest, self.now) {
                Some(pause) => {
                    self.wait(pause);
                    None
                }
                None => self.offer(start(&latest.name, Some(latest), current)),
            },
            State::Running { .. } | State::Exited(_) => None,
        }
    }

    /// Removes ended containers. Of each name the last one and the one before it stay, for their logs.
    fn tidy(&mut self, observed: &Observed) -> Option<PodStep> {
        let is_kept = |it: &Container| {
            let latest = observed.latest(&it.name);
            let before = latest.and_then(|latest| {
                if latest.exit().is_some() {
                    None
                } else {
                    observed.before(latest)
                }
            });
            [latest, before]
                .into_iter()
                .flatten()
                .any(|kept| kept.id == it.id)
        };
        let mut containers = observed.containers.iter();
        if let Some(old) = containers.find(|it| !it.is_alive() && !is_kept(it)) {
            return self.offer(remove(old));
        }
        let is_empty = |it: &&Sandbox| {
            let mut containers = observed.containers.iter();
            !it.is_ready && !containers.any(|container| container.sandbox == it.id)
        };
        let old = observed.sandboxes.iter().skip(1).find(is_empty)?;
        let id = old.id.clone();
        self.offer(PodStep::End(End::RemoveSandbox { id }))
    }
}

/// Returns the newest sandbox, if it is the only ready one and all living containers are in it.
fn current(observed: &Observed) -> Option<&Sandbox> {
    let (newest, older) = observed.sandboxes.split_first()?;
    let is_alone = newest.is_ready && !older.iter().any(|it| it.is_ready);
    let is_elsewhere = |it: &Container| it.sandbox != newest.id;
    (is_alone && !observed.alive().any(is_elsewhere)).then_some(newest)
}

fn sandbox(observed: Option<&Observed>) -> PodStep {
    let before = observed
        .map(|it| it.sandboxes.as_slice())
        .unwrap_or_default();
    PodStep::RunSandbox(RunSandbox {
        attempt: before.iter().map(|it| it.attempt + 1).max().unwrap_or(0),
        stop: before.iter().map(|it| it.id.clone()).collect(),
        started: before.iter().map(|it| it.started).min(),
    })
}

fn start(name: &str, before: Option<&Container>, sandbox: &Sandbox) -> PodStep {
    PodStep::StartContainer(StartContainer {
        name: name.to_owned(),
        attempt: before.map_or(0, |it| it.attempt + 1),
        sandbox: sandbox.id.clone(),
        sandbox_attempt: sandbox.attempt,
        backoff: next_backoff(before),
    })
}

fn stop(observed: &Observed, grace: Duration) -> PodStep {
    let alive = observed.alive().map(|it| (it.id.clone(), it.name.clone()));
    PodStep::End(End::StopPod {
        containers: alive.collect(),
        sandboxes: observed.sandboxes.iter().map(|it| it.id.clone()).collect(),
        grace,
    })
}

fn stop_one(container: &Container, observed: &Observed) -> PodStep {
    PodStep::End(End::StopContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        grace: observed.grace(),
    })
}

fn remove(container: &Container) -> PodStep {
    PodStep::End(End::RemoveContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        attempt: container.attempt,
    })
}

#[cfg(test)]
mod tests;
