//! Tests that the decisions are those that kubelet would make.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::pods::StepSubject;
use crate::pods::fixture::{
    at_second, container, exited, exited_after, observed_pod, pod, running, sandbox,
};

const APP: &str = "{containers: [{name: app, image: i}]}";
const TWO: &str = "{containers: [{name: app, image: i}, {name: other, image: i}]}";
const INIT: &str = "{initContainers: [{name: one, image: i}, {name: two, image: i}], containers: [{name: app, image: i}]}";

/// Returns second 102. Containers of the fixture that have ended did so one second earlier.
fn now() -> SystemTime {
    at_second(102)
}

fn describe(next: &NextAction) -> String {
    let ids = |ids: &[String]| ids.join(" ");
    let step = match next {
        NextAction::Idle => return "idle".to_owned(),
        NextAction::Wait(pause) => return format!("wait {}", pause.as_secs()),
        NextAction::Step(step) => step,
    };
    match step {
        PodStep::RunSandbox(step) => {
            format!("sandbox {} after [{}]", step.attempt, ids(&step.stop))
        }
        PodStep::PublishToRuntime { sandbox } => format!("publish to {sandbox}"),
        PodStep::StartContainer(step) => format!(
            "start {}-{} in {}, then {}",
            step.name,
            step.attempt,
            step.sandbox,
            step.backoff.as_secs()
        ),
        PodStep::End(EndStep::StopPod {
            containers,
            sandboxes,
            grace,
        }) => {
            let containers: Vec<String> = containers.iter().map(|(id, _)| id.clone()).collect();
            let (containers, sandboxes) = (ids(&containers), ids(sandboxes));
            format!("stop [{containers}] [{sandboxes}] in {}", grace.as_secs())
        }
        PodStep::End(EndStep::StopContainer { id, grace, .. }) => {
            format!("stop {id} in {}", grace.as_secs())
        }
        PodStep::End(EndStep::RemoveContainer { id, .. } | EndStep::RemoveSandbox { id }) => {
            format!("remove {id}")
        }
        PodStep::End(EndStep::RemovePod {
            containers,
            sandboxes,
        }) => format!("remove [{}] [{}]", ids(containers), ids(sandboxes)),
    }
}

fn run(spec: &str, observed: Option<&ObservedPod>) -> String {
    run_at(now(), spec, observed, &RetryDelays::default())
}

fn run_at(
    now: SystemTime,
    spec: &str,
    observed: Option<&ObservedPod>,
    retry_delays: &RetryDelays,
) -> String {
    let pod = pod(spec);
    let goal = PodGoal::Run {
        pod: &pod,
        volumes_ready: true,
        published_sandboxes: None,
    };
    describe(&next(goal, observed, retry_delays, now))
}

fn with_policy(spec: &str, policy: &str) -> String {
    spec.replacen('{', &format!("{{restartPolicy: {policy}, "), 1)
}

#[test]
fn a_sandbox_comes_first_and_volumes_before_it() {
    let pod = pod(APP);
    let goal = |volumes_ready| PodGoal::Run {
        pod: &pod,
        volumes_ready,
        published_sandboxes: None,
    };
    let retry_delays = RetryDelays::default();
    assert_eq!(
        next(goal(false), None, &retry_delays, now()),
        NextAction::Idle
    );
    let first = next(goal(true), None, &retry_delays, now());
    assert_eq!(describe(&first), "sandbox 0 after []");
    // Without the volumes no container is started again, and nothing is stopped.
    let crashed = observed_pod([sandbox(0, true)], [container("app", 0, exited(1))]);
    assert_eq!(
        next(goal(false), Some(&crashed), &retry_delays, now()),
        NextAction::Idle
    );
}

#[test]
fn volumes_are_mounted_between_sandbox_and_containers() {
    let pod = pod(APP);
    let sandboxes = observed_pod([sandbox(1, true), sandbox(0, false)], []);
    let set = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<BTreeSet<_>>();
    for (published, expected) in [
        (set(&[]), "publish to s1"),
        (set(&["s0"]), "publish to s1"),
        (set(&["s0", "s1"]), "start app-0 in s1, then 0"),
    ] {
        let goal = PodGoal::Run {
            pod: &pod,
            volumes_ready: true,
            published_sandboxes: Some(&published),
        };
        let next = next(goal, Some(&sandboxes), &RetryDelays::default(), now());
        assert_eq!(describe(&next), expected, "{published:?}");
    }
}

#[test]
fn containers_are_started_one_after_another_and_none_twice() {
    let cases = [
        (vec![], "start app-0 in s0, then 0"),
        (
            vec![container("app", 0, running())],
            "start other-0 in s0, then 0",
        ),
        (
            vec![
                container("app", 0, running()),
                container("other", 0, running()),
            ],
            "idle",
        ),
        // crustlet stopped between creating and starting the container.
        (vec![container("app", 0, RunState::Created)], "remove app-0"),
        (
            vec![container("app", 3, RunState::Unknown)],
            "stop app-3 in 5",
        ),
        (
            vec![
                container("app", 0, running()),
                container("other", 0, running()),
                container("gone", 0, running()),
            ],
            "stop gone-0 in 5",
        ),
    ];
    for (containers, expected) in cases {
        let observed = observed_pod([sandbox(0, true)], containers);
        assert_eq!(run(TWO, Some(&observed)), expected, "{observed:?}");
    }
}

#[test]
fn init_containers_run_one_after_another_before_app_containers() {
    let done = |name| container(name, 0, exited(0));
    let cases = [
        (vec![], "start one-0 in s0, then 0"),
        (vec![container("one", 0, running())], "idle"),
        (
            vec![container("one", 0, exited(1))],
            "start one-1 in s0, then 10",
        ),
        (vec![done("one")], "start two-0 in s0, then 0"),
        (
            vec![container("two", 0, RunState::Created), done("one")],
            "remove two-0",
        ),
        (vec![done("one"), done("two")], "start app-0 in s0, then 0"),
        // Once an app container exists, the init containers have succeeded, even if they were removed since.
        (
            vec![container("app", 0, exited(1))],
            "start app-1 in s0, then 10",
        ),
    ];
    for (containers, expected) in cases {
        let observed = observed_pod([sandbox(0, true)], containers);
        assert_eq!(run(INIT, Some(&observed)), expected, "{observed:?}");
    }
    // The init containers run again in a new sandbox.
    let earlier = [done("one"), done("two"), container("app", 0, exited(137))];
    let replaced = observed_pod([sandbox(1, true), sandbox(0, false)], earlier);
    assert_eq!(run(INIT, Some(&replaced)), "start one-1 in s1, then 10");
    let failed = observed_pod([sandbox(0, true)], [container("one", 0, exited(1))]);
    let never = with_policy(INIT, "Never");
    assert_eq!(
        run(&never, Some(&failed)),
        "stop [] [s0] in 5",
        "the init container isn't started again"
    );
}

#[test]
fn ended_containers_restart_according_to_the_restart_policy() {
    for (policy, code, expected) in [
        ("Always", 0, "start app-1 in s0, then 10"),
        ("Always", 1, "start app-1 in s0, then 10"),
        ("OnFailure", 1, "start app-1 in s0, then 10"),
        // When all containers have ended and none is started again, the sandbox is stopped.
        ("OnFailure", 0, "stop [] [s0] in 5"),
        ("Never", 0, "stop [] [s0] in 5"),
        ("Never", 1, "stop [] [s0] in 5"),
    ] {
        let observed = observed_pod([sandbox(0, true)], [container("app", 0, exited(code))]);
        let spec = with_policy(APP, policy);
        assert_eq!(run(&spec, Some(&observed)), expected, "{policy} {code}");
    }
    let one_runs = observed_pod(
        [sandbox(0, true)],
        [
            container("app", 0, exited(1)),
            container("other", 0, running()),
        ],
    );
    assert_eq!(run(&with_policy(TWO, "Never"), Some(&one_runs)), "idle");
}

#[test]
fn a_crash_doubles_the_backoff_and_a_long_run_resets_it() {
    for (backoff, ran, later, expected) in [
        (0, 1, 1, "start app-8 in s0, then 10"),
        (10, 1, 1, "wait 9"),
        (10, 1, 10, "start app-8 in s0, then 20"),
        (20, 1, 1, "wait 19"),
        (160, 1, 160, "start app-8 in s0, then 300"),
        (300, 1, 1, "wait 299"),
        (300, 1, 300, "start app-8 in s0, then 300"),
        (300, 600, 1, "start app-8 in s0, then 10"),
        (u64::MAX, 1, 1, "wait 299"),
        (u64::MAX, 1, 300, "start app-8 in s0, then 300"),
    ] {
        let crashed = container("app", 7, exited_after(1, ran)).backing_off(backoff);
        let observed = observed_pod([sandbox(0, true)], [crashed]);
        let now = at_second(100 + ran + later);
        let decision = run_at(now, APP, Some(&observed), &RetryDelays::default());
        assert_eq!(decision, expected, "{backoff} {ran} {later}");
    }
}

#[test]
fn a_clock_that_was_set_back_does_not_extend_the_backoff() {
    let crashed = container("app", 1, exited(1)).backing_off(10);
    let observed = observed_pod([sandbox(0, true)], [crashed]);
    let decision = run_at(at_second(50), APP, Some(&observed), &RetryDelays::default());
    assert_eq!(decision, "wait 10");
}

#[test]
fn a_dead_sandbox_is_replaced_after_its_containers_stop() {
    let dead = [sandbox(0, false)];
    let alive = observed_pod(dead.clone(), [container("app", 0, running())]);
    assert_eq!(run(APP, Some(&alive)), "stop [app-0] [s0] in 5");
    let stopped = observed_pod(dead.clone(), [container("app", 0, exited(137))]);
    assert_eq!(run(APP, Some(&stopped)), "sandbox 1 after [s0]");
    let step = next(
        PodGoal::Run {
            pod: &pod(APP),
            volumes_ready: true,
            published_sandboxes: None,
        },
        Some(&stopped),
        &RetryDelays::default(),
        now(),
    );
    let NextAction::Step(PodStep::RunSandbox(step)) = step else {
        panic!("{step:?}");
    };
    assert_eq!(
        step.started,
        Some(at_second(1)),
        "when the first one was created"
    );
    // No container will be started again, so no sandbox is needed.
    let never = with_policy(APP, "Never");
    assert_eq!(run(&never, Some(&stopped)), "idle");
    let partly_run = observed_pod(dead, [container("app", 0, exited(0))]);
    assert_eq!(
        run(&with_policy(TWO, "Never"), Some(&partly_run)),
        "sandbox 1 after [s0]"
    );
    let replaced = observed_pod(
        [sandbox(1, true), sandbox(0, false)],
        [container("app", 0, exited(0))],
    );
    let expected = "start other-0 in s1, then 0";
    assert_eq!(run(&with_policy(TWO, "Never"), Some(&replaced)), expected);
}

#[test]
fn a_sandbox_that_ends_at_once_is_replaced_with_a_delay() {
    let decide = |now, observed: &ObservedPod| {
        run_at(at_second(now), APP, Some(observed), &RetryDelays::default())
    };
    let two = observed_pod([sandbox(1, false), sandbox(0, false)], []);
    assert_eq!(decide(3, &two), "remove s0");
    let second = observed_pod([sandbox(1, false)], []);
    assert_eq!(decide(3, &second), "wait 1", "it was created at second 2");
    assert_eq!(decide(4, &second), "sandbox 2 after [s1]");
    let expected = "sandbox 2 after [s1]";
    assert_eq!(decide(1, &second), expected, "the clock was set back");
}

#[test]
fn all_sandboxes_are_stopped_unless_only_the_newest_is_in_use() {
    let two = observed_pod([sandbox(1, true), sandbox(0, true)], []);
    assert_eq!(run(APP, Some(&two)), "stop [] [s1 s0] in 5");
    let in_older_sandbox = observed_pod(
        [sandbox(1, true), sandbox(0, false)],
        [container("app", 0, running())],
    );
    let expected = "stop [app-0] [s1 s0] in 5";
    assert_eq!(run(APP, Some(&in_older_sandbox)), expected);
}

#[test]
fn the_newest_ended_container_of_each_name_is_kept() {
    let newest = container("app", 3, running()).in_sandbox(1);
    let cases = [
        // The log of the previous container may be asked for.
        (vec![newest.clone(), container("app", 2, exited(1))], "idle"),
        (
            vec![
                newest.clone(),
                container("app", 2, exited(1)),
                container("app", 1, exited(1)),
            ],
            "remove app-1",
        ),
        (
            vec![
                container("app", 2, exited(1))
                    .in_sandbox(1)
                    .backing_off(300),
                container("app", 1, exited(1)),
            ],
            "remove app-1",
        ),
        (vec![newest], "remove s0"),
    ];
    for (containers, expected) in cases {
        let observed = observed_pod([sandbox(1, true), sandbox(0, false)], containers);
        assert_eq!(run(APP, Some(&observed)), expected, "{observed:?}");
    }
}

#[test]
fn a_failed_step_is_delayed_while_other_steps_go_on() {
    let delay =
        |subject, seconds| RetryDelays(BTreeMap::from([(subject, Duration::from_secs(seconds))]));
    let app_delay = delay(StepSubject::Container("app".to_owned()), 7);
    let empty = observed_pod([sandbox(0, true)], []);
    let expected = "start other-0 in s0, then 0";
    assert_eq!(run_at(now(), TWO, Some(&empty), &app_delay), expected);
    let other = observed_pod([sandbox(0, true)], [container("other", 0, running())]);
    assert_eq!(run_at(now(), TWO, Some(&other), &app_delay), "wait 7");
    let crashed = container("other", 0, exited(1)).backing_off(5);
    let both_wait = observed_pod([sandbox(0, true)], [crashed]);
    assert_eq!(
        run_at(now(), TWO, Some(&both_wait), &app_delay),
        "wait 4",
        "the shorter of the two delays"
    );
    assert_eq!(
        run_at(now(), APP, None, &delay(StepSubject::Sandbox, 1)),
        "wait 1"
    );
    let old = observed_pod(
        [sandbox(0, true)],
        [
            container("app", 1, running()),
            container("app", 0, exited(1)),
            container("old", 1, exited(1)),
            container("old", 0, exited(1)),
        ],
    );
    assert_eq!(
        run_at(now(), APP, Some(&old), &delay(StepSubject::End, 3)),
        "wait 3"
    );
}

#[test]
fn a_pod_that_ends_is_stopped_and_then_removed() {
    let end = |observed: Option<&ObservedPod>| {
        let grace = Duration::from_secs(2);
        describe(&next(
            PodGoal::End { grace },
            observed,
            &RetryDelays::default(),
            now(),
        ))
    };
    assert_eq!(end(None), "idle");
    let alive = observed_pod(
        [sandbox(1, true), sandbox(0, false)],
        [
            container("app", 1, running()),
            container("app", 0, exited(1)),
            container("two", 0, RunState::Created),
        ],
    );
    assert_eq!(end(Some(&alive)), "stop [app-1] [s1 s0] in 2");
    let without_sandbox = observed_pod([], [container("app", 0, RunState::Unknown)]);
    assert_eq!(end(Some(&without_sandbox)), "stop [app-0] [] in 2");
    let stopped = observed_pod([sandbox(0, false)], [container("app", 0, exited(1))]);
    assert_eq!(end(Some(&stopped)), "remove [app-0] [s0]");
}
