//! Tests of the steps, against what kubelet would do.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::pods::Subject;
use crate::pods::fixture::{at, container, exited, exited_after, observed, pod, running, sandbox};

const APP: &str = "{containers: [{name: app, image: i}]}";
const TWO: &str = "{containers: [{name: app, image: i}, {name: other, image: i}]}";
const INIT: &str = "{initContainers: [{name: one, image: i}, {name: two, image: i}], containers: [{name: app, image: i}]}";

/// At the hundred and second second: whatever ended did so one second ago.
fn now() -> SystemTime {
    at(102)
}

fn told(next: &Next) -> String {
    let ids = |ids: &[String]| ids.join(" ");
    let step = match next {
        Next::Idle => return "idle".to_owned(),
        Next::Wait(pause) => return format!("wait {}", pause.as_secs()),
        Next::Step(step) => step,
    };
    match step {
        PodStep::RunSandbox(it) => format!("sandbox {} after [{}]", it.attempt, ids(&it.stop)),
        PodStep::PublishToRuntime { sandbox } => format!("publish to {sandbox}"),
        PodStep::StartContainer(it) => format!(
            "start {}-{} in {}, then {}",
            it.name,
            it.attempt,
            it.sandbox,
            it.backoff.as_secs()
        ),
        PodStep::End(End::StopPod {
            containers,
            sandboxes,
            grace,
        }) => {
            let containers: Vec<String> = containers.iter().map(|(id, _)| id.clone()).collect();
            let (containers, sandboxes) = (ids(&containers), ids(sandboxes));
            format!("stop [{containers}] [{sandboxes}] in {}", grace.as_secs())
        }
        PodStep::End(End::StopContainer { id, grace, .. }) => {
            format!("stop {id} in {}", grace.as_secs())
        }
        PodStep::End(End::RemoveContainer { id, .. } | End::RemoveSandbox { id }) => {
            format!("remove {id}")
        }
        PodStep::End(End::RemovePod {
            containers,
            sandboxes,
        }) => format!("remove [{}] [{}]", ids(containers), ids(sandboxes)),
    }
}

fn run(spec: &str, observed: Option<&Observed>) -> String {
    run_at(now(), spec, observed, &RetryDelays::default())
}

fn run_at(now: SystemTime, spec: &str, observed: Option<&Observed>, held: &RetryDelays) -> String {
    let pod = pod(spec);
    let wanted = PodGoal::Run {
        pod: &pod,
        volumes_ready: true,
        told: None,
    };
    told(&next(wanted, observed, held, now))
}

fn with(spec: &str, policy: &str) -> String {
    spec.replacen('{', &format!("{{restartPolicy: {policy}, "), 1)
}

#[test]
fn a_sandbox_comes_first_and_volumes_before_it() {
    let pod = pod(APP);
    let wanted = |volumes_ready| PodGoal::Run {
        pod: &pod,
        volumes_ready,
        told: None,
    };
    let held = RetryDelays::default();
    assert_eq!(next(wanted(false), None, &held, now()), Next::Idle);
    let first = next(wanted(true), None, &held, now());
    assert_eq!(told(&first), "sandbox 0 after []");
    // Not even what ended is started again without them, and what runs goes on.
    let crashed = observed([sandbox(0, true)], [container("app", 0, exited(1))]);
    assert_eq!(
        next(wanted(false), Some(&crashed), &held, now()),
        Next::Idle
    );
}

#[test]
fn volumes_are_mounted_between_sandbox_and_containers() {
    let pod = pod(APP);
    let sandboxes = observed([sandbox(1, true), sandbox(0, false)], []);
    let of = |ids: &[&str]| ids.iter().map(|&it| it.to_owned()).collect::<BTreeSet<_>>();
    for (published, expected) in [
        (of(&[]), "publish to s1"),
        (of(&["s0"]), "publish to s1"),
        (of(&["s0", "s1"]), "start app-0 in s1, then 0"),
    ] {
        let wanted = PodGoal::Run {
            pod: &pod,
            volumes_ready: true,
            told: Some(&published),
        };
        let next = next(wanted, Some(&sandboxes), &RetryDelays::default(), now());
        assert_eq!(told(&next), expected, "{published:?}");
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
        // Whoever made it ended before it was started.
        (vec![container("app", 0, State::Created)], "remove app-0"),
        (vec![container("app", 3, State::Unknown)], "stop app-3 in 5"),
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
        let observed = observed([sandbox(0, true)], containers);
        assert_eq!(run(TWO, Some(&observed)), expected, "{observed:?}");
    }
}

#[test]
fn init_containers_run_one_after_another_before_the_rest() {
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
            vec![container("two", 0, State::Created), done("one")],
            "remove two-0",
        ),
        (vec![done("one"), done("two")], "start app-0 in s0, then 0"),
        // That they are done is known from the app, were their remains removed.
        (
            vec![container("app", 0, exited(1))],
            "start app-1 in s0, then 10",
        ),
    ];
    for (containers, expected) in cases {
        let observed = observed([sandbox(0, true)], containers);
        assert_eq!(run(INIT, Some(&observed)), expected, "{observed:?}");
    }
    // In a new sandbox they begin anew.
    let earlier = [done("one"), done("two"), container("app", 0, exited(137))];
    let anew = observed([sandbox(1, true), sandbox(0, false)], earlier);
    assert_eq!(run(INIT, Some(&anew)), "start one-1 in s1, then 10");
    let failed = observed([sandbox(0, true)], [container("one", 0, exited(1))]);
    let never = with(INIT, "Never");
    assert_eq!(
        run(&never, Some(&failed)),
        "stop [] [s0] in 5",
        "it failed for good"
    );
}

#[test]
fn who_ended_is_started_again_by_the_restart_policy() {
    for (policy, code, expected) in [
        ("Always", 0, "start app-1 in s0, then 10"),
        ("Always", 1, "start app-1 in s0, then 10"),
        ("OnFailure", 1, "start app-1 in s0, then 10"),
        // What ended for good leaves the sandbox to be stopped.
        ("OnFailure", 0, "stop [] [s0] in 5"),
        ("Never", 0, "stop [] [s0] in 5"),
        ("Never", 1, "stop [] [s0] in 5"),
    ] {
        let observed = observed([sandbox(0, true)], [container("app", 0, exited(code))]);
        let spec = with(APP, policy);
        assert_eq!(run(&spec, Some(&observed)), expected, "{policy} {code}");
    }
    let one_runs = observed(
        [sandbox(0, true)],
        [
            container("app", 0, exited(1)),
            container("other", 0, running()),
        ],
    );
    assert_eq!(run(&with(TWO, "Never"), Some(&one_runs)), "idle");
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
        let observed = observed([sandbox(0, true)], [crashed]);
        let now = at(100 + ran + later);
        let told = run_at(now, APP, Some(&observed), &RetryDelays::default());
        assert_eq!(told, expected, "{backoff} {ran} {later}");
    }
}

#[test]
fn a_clock_that_was_put_back_makes_no_pause_longer() {
    let crashed = container("app", 1, exited(1)).backing_off(10);
    let observed = observed([sandbox(0, true)], [crashed]);
    let told = run_at(at(50), APP, Some(&observed), &RetryDelays::default());
    assert_eq!(told, "wait 10");
}

#[test]
fn a_dead_sandbox_is_replaced_after_all_in_it_stopped() {
    let dead = [sandbox(0, false)];
    let alive = observed(dead.clone(), [container("app", 0, running())]);
    assert_eq!(run(APP, Some(&alive)), "stop [app-0] [s0] in 5");
    let stopped = observed(dead.clone(), [container("app", 0, exited(137))]);
    assert_eq!(run(APP, Some(&stopped)), "sandbox 1 after [s0]");
    let step = next(
        PodGoal::Run {
            pod: &pod(APP),
            volumes_ready: true,
            told: None,
        },
        Some(&stopped),
        &RetryDelays::default(),
        now(),
    );
    let Next::Step(PodStep::RunSandbox(step)) = step else {
        panic!("{step:?}");
    };
    assert_eq!(step.started, Some(at(1)), "the pod is as old as its first");
    // Nothing of it is to run any more.
    let never = with(APP, "Never");
    assert_eq!(run(&never, Some(&stopped)), "idle");
    let begun = observed(dead, [container("app", 0, exited(0))]);
    assert_eq!(
        run(&with(TWO, "Never"), Some(&begun)),
        "sandbox 1 after [s0]"
    );
    let anew = observed(
        [sandbox(1, true), sandbox(0, false)],
        [container("app", 0, exited(0))],
    );
    let expected = "start other-0 in s1, then 0";
    assert_eq!(run(&with(TWO, "Never"), Some(&anew)), expected);
}

#[test]
fn sandboxes_that_die_at_once_are_neither_many_nor_soon() {
    let told =
        |now, observed: &Observed| run_at(at(now), APP, Some(observed), &RetryDelays::default());
    let two = observed([sandbox(1, false), sandbox(0, false)], []);
    assert_eq!(told(3, &two), "remove s0");
    let second = observed([sandbox(1, false)], []);
    assert_eq!(
        told(3, &second),
        "wait 1",
        "it was made in the second second"
    );
    assert_eq!(told(4, &second), "sandbox 2 after [s1]");
    let back = "sandbox 2 after [s1]";
    assert_eq!(told(1, &second), back, "the clock was put back");
}

#[test]
fn of_two_sandboxes_that_live_both_go() {
    let two = observed([sandbox(1, true), sandbox(0, true)], []);
    assert_eq!(run(APP, Some(&two)), "stop [] [s1 s0] in 5");
    let elsewhere = observed(
        [sandbox(1, true), sandbox(0, false)],
        [container("app", 0, running())],
    );
    assert_eq!(run(APP, Some(&elsewhere)), "stop [app-0] [s1 s0] in 5");
}

#[test]
fn of_what_ended_the_last_of_each_name_stays() {
    let runs = container("app", 3, running()).in_sandbox(1);
    let cases = [
        // The log of the run before can be asked for.
        (vec![runs.clone(), container("app", 2, exited(1))], "idle"),
        (
            vec![
                runs.clone(),
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
        (vec![runs], "remove s0"),
    ];
    for (containers, expected) in cases {
        let observed = observed([sandbox(1, true), sandbox(0, false)], containers);
        assert_eq!(run(APP, Some(&observed)), expected, "{observed:?}");
    }
}

#[test]
fn what_failed_lately_is_left_alone_and_the_rest_goes_on() {
    let of =
        |subject, seconds| RetryDelays(BTreeMap::from([(subject, Duration::from_secs(seconds))]));
    let app = of(Subject::Container("app".to_owned()), 7);
    let empty = observed([sandbox(0, true)], []);
    let expected = "start other-0 in s0, then 0";
    assert_eq!(run_at(now(), TWO, Some(&empty), &app), expected);
    let other = observed([sandbox(0, true)], [container("other", 0, running())]);
    assert_eq!(run_at(now(), TWO, Some(&other), &app), "wait 7");
    let crashed = container("other", 0, exited(1)).backing_off(5);
    let both = observed([sandbox(0, true)], [crashed]);
    assert_eq!(
        run_at(now(), TWO, Some(&both), &app),
        "wait 4",
        "the shorter"
    );
    assert_eq!(run_at(now(), APP, None, &of(Subject::Sandbox, 1)), "wait 1");
    let old = observed(
        [sandbox(0, true)],
        [
            container("app", 1, running()),
            container("app", 0, exited(1)),
            container("old", 1, exited(1)),
            container("old", 0, exited(1)),
        ],
    );
    assert_eq!(
        run_at(now(), APP, Some(&old), &of(Subject::End, 3)),
        "wait 3"
    );
}

#[test]
fn what_ends_is_stopped_then_removed_and_nothing_is_started() {
    let end = |observed: Option<&Observed>| {
        let grace = Duration::from_secs(2);
        told(&next(
            PodGoal::End { grace },
            observed,
            &RetryDelays::default(),
            now(),
        ))
    };
    assert_eq!(end(None), "idle");
    let alive = observed(
        [sandbox(1, true), sandbox(0, false)],
        [
            container("app", 1, running()),
            container("app", 0, exited(1)),
            container("two", 0, State::Created),
        ],
    );
    assert_eq!(end(Some(&alive)), "stop [app-1] [s1 s0] in 2");
    let without_sandbox = observed([], [container("app", 0, State::Unknown)]);
    assert_eq!(end(Some(&without_sandbox)), "stop [app-0] [] in 2");
    let stopped = observed([sandbox(0, false)], [container("app", 0, exited(1))]);
    assert_eq!(end(Some(&stopped)), "remove [app-0] [s0]");
}
