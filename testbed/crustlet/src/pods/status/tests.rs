//! Tests that the status is the one that kubelet would write.

use std::slice;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ContainerState;

use super::*;
use crate::pods::StepSubject;
use crate::pods::failures::Failure;
use crate::pods::fixture::{at_second, container, exited, observed_pod, pod, running, sandbox};
use crate::pods::observed::ObservedContainer;

const APP: &str = "{containers: [{name: app, image: i}]}";
const TWO: &str = "{containers: [{name: app, image: i}, {name: other, image: i}]}";
const INIT: &str = "{initContainers: [{name: one, image: i}], containers: [{name: app, image: i}]}";

fn with_policy(spec: &str, policy: &str) -> String {
    spec.replacen('{', &format!("{{restartPolicy: {policy}, "), 1)
}

fn status_of(spec: &str, observed: Option<&ObservedPod>) -> PodStatus {
    status_with_failures(
        spec,
        observed,
        &Failures::default(),
        &RetryDelays::default(),
    )
}

fn status_with_failures(
    spec: &str,
    observed: Option<&ObservedPod>,
    failures: &Failures,
    retry_delays: &RetryDelays,
) -> PodStatus {
    status(&StatusInputs {
        pod: &pod(spec),
        observed,
        failures,
        retry_delays,
        is_ending: false,
        runtime: "containerd",
        previous: None,
        now: at_second(102),
    })
}

fn in_a_sandbox(containers: Vec<ObservedContainer>) -> ObservedPod {
    observed_pod([sandbox(0, true)], containers)
}

fn state(state: Option<&ContainerState>) -> String {
    let Some(state) = state else {
        return "none".to_owned();
    };
    if state.running.is_some() {
        "running".to_owned()
    } else if let Some(terminated) = &state.terminated {
        let reason = terminated.reason.as_deref().unwrap_or_default();
        format!("{reason} {}", terminated.exit_code)
    } else {
        let waiting = state.waiting.as_ref().expect("a state");
        waiting.reason.clone().unwrap_or_default()
    }
}

/// Returns the first container's state, its last state, whether it is ready, and its restart count.
fn first_container(status: &PodStatus) -> (String, String, bool, i32) {
    let container = &status.container_statuses.as_ref().unwrap()[0];
    (
        state(container.state.as_ref()),
        state(container.last_state.as_ref()),
        container.ready,
        container.restart_count,
    )
}

fn conditions(status: &PodStatus) -> Vec<String> {
    let conditions = status.conditions.iter().flatten();
    conditions
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("{} {} {reason}", condition.type_, condition.status)
                .trim_end()
                .to_owned()
        })
        .collect()
}

#[test]
fn phases_are_those_of_kubelet() {
    let two = |app, other| vec![container("app", 0, app), container("other", 0, other)];
    let cases = [
        ("Always", vec![], "Pending"),
        ("Always", vec![container("app", 0, running())], "Pending"),
        ("Always", two(running(), RunState::Created), "Pending"),
        ("Always", two(running(), running()), "Running"),
        ("Always", two(exited(1), exited(0)), "Running"),
        ("OnFailure", two(exited(1), exited(0)), "Running"),
        ("OnFailure", two(exited(0), exited(0)), "Succeeded"),
        ("Never", two(running(), exited(1)), "Running"),
        ("Never", two(exited(0), exited(1)), "Failed"),
        ("Never", two(exited(0), exited(0)), "Succeeded"),
        ("Never", two(exited(0), RunState::Unknown), "Running"),
    ];
    for (policy, containers, expected) in cases {
        let spec = with_policy(TWO, policy);
        let observed = in_a_sandbox(containers);
        let status = status_of(&spec, Some(&observed));
        assert_eq!(
            status.phase.as_deref(),
            Some(expected),
            "{policy} {observed:?}"
        );
        let has_ended = matches!(expected, "Succeeded" | "Failed");
        assert_eq!(outcome(&pod(&spec), &observed).is_some(), has_ended);
    }
    assert_eq!(status_of(TWO, None).phase.as_deref(), Some("Pending"));
}

#[test]
fn init_containers_keep_a_pod_pending_or_fail_it() {
    let cases = [
        ("Always", vec![], "Pending", "PodInitializing", "False"),
        (
            "Always",
            vec![container("one", 0, running())],
            "Pending",
            "PodInitializing",
            "False",
        ),
        (
            "Always",
            vec![container("one", 0, exited(1))],
            "Pending",
            "PodInitializing",
            "False",
        ),
        (
            "Never",
            vec![container("one", 0, exited(1))],
            "Failed",
            "PodInitializing",
            "False",
        ),
        (
            "Always",
            vec![container("one", 0, exited(0))],
            "Pending",
            "ContainerCreating",
            "True",
        ),
        (
            "Always",
            vec![
                container("one", 0, exited(0)),
                container("app", 0, running()),
            ],
            "Running",
            "running",
            "True",
        ),
    ];
    for (policy, containers, phase, app, initialized) in cases {
        let observed = in_a_sandbox(containers);
        let status = status_of(&with_policy(INIT, policy), Some(&observed));
        assert_eq!(status.phase.as_deref(), Some(phase), "{observed:?}");
        assert_eq!(first_container(&status).0, app, "{observed:?}");
        let conditions = conditions(&status);
        let expected = format!("Initialized {initialized}");
        assert!(conditions[1].starts_with(&expected), "{conditions:?}");
    }
}

#[test]
fn a_containers_status_has_its_last_state() {
    let crashed = |attempt| container("app", attempt, exited(1));
    let text = str::to_owned;
    for (containers, expected) in [
        (vec![], (text("ContainerCreating"), text("none"), false, 0)),
        (
            vec![container("app", 0, running())],
            (text("running"), text("none"), true, 0),
        ),
        (
            vec![container("app", 1, running()), crashed(0)],
            (text("running"), text("Error 1"), true, 1),
        ),
        (vec![crashed(0)], (text("Error 1"), text("none"), false, 0)),
        (
            vec![crashed(2).backing_off(10), crashed(1)],
            (text("CrashLoopBackOff"), text("Error 1"), false, 2),
        ),
        (
            vec![container("app", 0, RunState::Unknown)],
            (text("ContainerStatusUnknown 137"), text("none"), false, 0),
        ),
    ] {
        let observed = in_a_sandbox(containers);
        assert_eq!(
            first_container(&status_of(APP, Some(&observed))),
            expected,
            "{observed:?}"
        );
    }
    let observed = in_a_sandbox(vec![crashed(2).backing_off(80)]);
    let status = status_of(APP, Some(&observed));
    let app = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(app.container_id.as_deref(), Some("containerd://app-2"));
    let waiting = app.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(
        waiting.message.as_deref(),
        Some("back-off 1m20s restarting failed container=app pod=web_default(u)")
    );
}

#[test]
fn a_failed_step_is_the_reason_why_a_container_waits() {
    let app = || StepSubject::Container("app".to_owned());
    let failures = |subject, reason, is_pull| {
        let mut failures = Failures::default();
        let failure = Failure {
            reason,
            message: "why".to_owned(),
            is_pull,
        };
        failures.fail(subject, failure, Instant::now());
        failures
    };
    let retry_delays = RetryDelays([(app(), Duration::from_secs(1))].into());
    let no_delays = RetryDelays::default();
    for (subject, reason, is_pull, retry_delays, expected) in [
        (
            app(),
            "ErrImagePull",
            true,
            &retry_delays,
            "ImagePullBackOff",
        ),
        (app(), "ErrImagePull", true, &no_delays, "ErrImagePull"),
        (
            app(),
            "CreateContainerError",
            false,
            &retry_delays,
            "CreateContainerError",
        ),
        (
            StepSubject::Sandbox,
            "CreatePodSandboxError",
            false,
            &retry_delays,
            "ContainerCreating",
        ),
        (
            StepSubject::Sandbox,
            Failure::CONFIG_ERROR,
            false,
            &retry_delays,
            "CreateContainerConfigError",
        ),
    ] {
        let failures = failures(subject, reason, is_pull);
        let observed = in_a_sandbox(Vec::new());
        let status = status_with_failures(APP, Some(&observed), &failures, retry_delays);
        let containers = status.container_statuses.unwrap();
        let waiting = containers[0]
            .state
            .as_ref()
            .unwrap()
            .waiting
            .as_ref()
            .unwrap();
        assert_eq!(waiting.reason.as_deref(), Some(expected));
        let message = waiting.message.as_deref().unwrap_or_default();
        assert!(message.ends_with("why"), "{message}");
    }
    // A container that has ended and can't be started again.
    let failures = failures(app(), "RunContainerError", false);
    let crashed = in_a_sandbox(vec![container("app", 0, exited(128))]);
    let status = status_with_failures(APP, Some(&crashed), &failures, &retry_delays);
    let (state, last_state, ..) = first_container(&status);
    assert_eq!(
        (state.as_str(), last_state.as_str()),
        ("RunContainerError", "Error 128")
    );
}

#[test]
fn conditions_name_the_containers_that_are_not_ready() {
    let observed = in_a_sandbox(vec![
        container("app", 0, running()),
        container("other", 0, exited(0)),
    ]);
    let status = status_of(TWO, Some(&observed));
    assert_eq!(
        conditions(&status),
        [
            "PodScheduled True",
            "Initialized True",
            "ContainersReady False ContainersNotReady",
            "Ready False ContainersNotReady",
        ]
    );
    let ready = status.conditions.unwrap().pop().unwrap();
    let message = "containers with unready status: [other]";
    assert_eq!(ready.message.as_deref(), Some(message));
    let ended = in_a_sandbox(vec![container("app", 0, exited(0))]);
    let status = status_of(&with_policy(APP, "Never"), Some(&ended));
    assert_eq!(conditions(&status)[3], "Ready False PodCompleted");
}

#[test]
fn transition_times_change_only_with_the_status() {
    let app_pod = pod(APP);
    let observed = in_a_sandbox(vec![container("app", 0, running())]);
    let (failures, retry_delays) = (Failures::default(), RetryDelays::default());
    let inputs = StatusInputs {
        pod: &app_pod,
        observed: Some(&observed),
        failures: &failures,
        retry_delays: &retry_delays,
        is_ending: false,
        runtime: "containerd",
        previous: None,
        now: at_second(10),
    };
    let before = status(&inputs);
    let later = StatusInputs {
        previous: Some(&before),
        now: at_second(20),
        ..inputs
    };
    assert_eq!(status(&later), before);
    let without_sandbox = StatusInputs {
        observed: None,
        ..later
    };
    let after = status(&without_sandbox);
    assert_eq!(
        after.start_time,
        to_time(at_second(1)),
        "the start time is taken from the previous status"
    );
    let transition_time = |status: &PodStatus, index: usize| {
        status.conditions.as_ref().unwrap()[index]
            .last_transition_time
            .clone()
    };
    assert_eq!(
        transition_time(&after, 0),
        to_time(at_second(10)),
        "PodScheduled"
    );
    assert_eq!(transition_time(&after, 3), to_time(at_second(20)), "Ready");
}

#[test]
fn an_ending_pod_has_no_waiting_containers() {
    let app_pod = pod(APP);
    let ended = in_a_sandbox(vec![container("app", 1, exited(137)).backing_off(10)]);
    let (failures, retry_delays) = (Failures::default(), RetryDelays::default());
    let status = status(&StatusInputs {
        pod: &app_pod,
        observed: Some(&ended),
        failures: &failures,
        retry_delays: &retry_delays,
        is_ending: true,
        runtime: "containerd",
        previous: None,
        now: at_second(102),
    });
    assert_eq!(first_container(&status).0, "Error 137");
    assert_eq!(
        back_offs(&app_pod, None, &status),
        Vec::<BackOffEvent>::new()
    );
}

#[test]
fn the_address_is_that_of_a_ready_sandbox() {
    let ready = status_of(APP, Some(&in_a_sandbox(Vec::new())));
    assert_eq!(ready.pod_ip.as_deref(), Some("10.0.0.7"));
    assert_eq!(ready.pod_ips.unwrap()[0].ip, "10.0.0.7");
    assert_eq!(ready.qos_class.as_deref(), Some("BestEffort"));
    let not_ready = status_of(APP, Some(&observed_pod([sandbox(0, false)], [])));
    assert_eq!((not_ready.pod_ip, not_ready.pod_ips), (None, None));
}

#[test]
fn a_back_off_event_is_emitted_once_for_each_attempt() {
    let app_pod = pod(APP);
    let crashed = |attempt| {
        let crashed = container("app", attempt, exited(1)).backing_off(10);
        status_of(APP, Some(&in_a_sandbox(vec![crashed])))
    };
    let running_status = status_of(
        APP,
        Some(&in_a_sandbox(vec![container("app", 1, running())])),
    );
    let events = back_offs(&app_pod, Some(&running_status), &crashed(1));
    let expected = BackOffEvent {
        message: "Back-off restarting failed container app in pod web_default(u)".to_owned(),
        is_pull: false,
    };
    assert_eq!(events, slice::from_ref(&expected));
    let repeated = back_offs(&app_pod, Some(&crashed(1)), &crashed(1));
    assert_eq!(repeated, Vec::<BackOffEvent>::new());
    assert_eq!(
        back_offs(&app_pod, Some(&crashed(1)), &crashed(2)),
        [expected]
    );
    let first = back_offs(&app_pod, None, &running_status);
    assert_eq!(first, Vec::<BackOffEvent>::new());
}
