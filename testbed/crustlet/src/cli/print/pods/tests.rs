//! Each row is what kubectl says of such a pod.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::*;

/// Ten minutes after what the pods tell of.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_mins(10)
}

fn container(name: &str, state: &Value) -> Value {
    let ready = state.get("running").is_some();
    json!({
        "name": name, "image": "i", "imageID": "", "ready": ready, "started": ready, "restartCount": 0, "state": state,
    })
}

fn pod(init: &[&Value], containers: &[&Value], phase: &str) -> Value {
    let names = |prefix: &str, count: usize| -> Vec<Value> {
        let names = (0..count).map(|at| json!({"name": format!("{prefix}{at}")}));
        names.collect()
    };
    let statuses = |prefix: &str, states: &[&Value]| -> Vec<Value> {
        let states = states.iter().enumerate();
        let states = states.map(|(at, state)| container(&format!("{prefix}{at}"), state));
        states.collect()
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "initContainers": names("i", init.len()),
            "containers": names("c", containers.len()),
        },
        "status": {
            "phase": phase,
            "initContainerStatuses": statuses("i", init),
            "containerStatuses": statuses("c", containers),
        },
    })
}

fn summary(pod: &Value) -> Summary {
    super::summary(&serde_json::from_value(pod.clone()).unwrap(), now())
}

#[track_caller]
fn check(pod: &Value, ready: &str, status: &str) {
    let found = summary(pod);
    assert_eq!(
        (found.ready.as_str(), found.status.as_str()),
        (ready, status)
    );
}

fn waits(reason: &str) -> Value {
    json!({"waiting": {"reason": reason}})
}

fn ended(code: i32, reason: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason}})
}

#[test]
fn containers_say_how_a_pod_is() {
    let runs = json!({"running": {}});
    let creating = waits("ContainerCreating");
    for (containers, phase, ready, status) in [
        (&[][..], "Pending", "0/0", "Pending"),
        (&[&creating], "Pending", "0/1", "ContainerCreating"),
        (&[&runs], "Running", "1/1", "Running"),
        (
            &[&runs, &waits("CrashLoopBackOff")],
            "Running",
            "1/2",
            "CrashLoopBackOff",
        ),
        (
            &[&waits("ImagePullBackOff")],
            "Pending",
            "0/1",
            "ImagePullBackOff",
        ),
        (&[&ended(0, "Completed")], "Succeeded", "0/1", "Completed"),
        (&[&ended(1, "Error")], "Failed", "0/1", "Error"),
        (
            &[&ended(137, "OOMKilled"), &ended(0, "Completed")],
            "Failed",
            "0/2",
            "OOMKilled",
        ),
        (&[&ended(3, "")], "Failed", "0/1", "ExitCode:3"),
        (
            &[&json!({"terminated": {"exitCode": 137, "signal": 9}})],
            "Failed",
            "0/1",
            "Signal:9",
        ),
        (&[&json!({"waiting": {}})], "Pending", "0/1", "Pending"),
    ] {
        check(&pod(&[], containers, phase), ready, status);
    }
}

#[test]
fn a_container_that_is_done_is_no_news_while_others_run() {
    let runs = json!({"running": {}});
    let mut one_runs = pod(&[], &[&ended(0, "Completed"), &runs], "Running");
    check(&one_runs, "1/2", "NotReady");
    one_runs["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    check(&one_runs, "1/2", "Running");
}

#[test]
fn the_first_init_container_that_is_not_done_says_how_a_pod_is() {
    let done = ended(0, "Completed");
    let initializing = waits("PodInitializing");
    for (init, status) in [
        (&[&json!({"running": {}}), &initializing][..], "Init:0/2"),
        (&[&done, &initializing], "Init:1/2"),
        (&[&initializing, &initializing], "Init:0/2"),
        (&[&ended(1, "Error"), &initializing], "Init:Error"),
        (&[&ended(1, ""), &initializing], "Init:ExitCode:1"),
        (
            &[&waits("CrashLoopBackOff"), &initializing],
            "Init:CrashLoopBackOff",
        ),
        (&[&done, &done], "PodInitializing"),
    ] {
        check(&pod(init, &[&initializing], "Pending"), "0/1", status);
    }
}

#[test]
fn a_sidecar_that_was_started_is_ready_with_the_pod() {
    let runs = json!({"running": {}});
    let mut with = pod(&[&runs], &[&waits("PodInitializing")], "Pending");
    with["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    check(&with, "1/2", "PodInitializing");
    with["status"]["initContainerStatuses"][0]["started"] = json!(false);
    check(&with, "0/2", "Init:0/1");
}

#[test]
fn a_sidecar_that_ends_later_hides_no_container() {
    let mut with = pod(
        &[&waits("CrashLoopBackOff")],
        &[&json!({"running": {}})],
        "Running",
    );
    with["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    with["status"]["conditions"] = json!([{"type": "Initialized", "status": "True"}]);
    check(&with, "1/2", "Init:CrashLoopBackOff");
}

#[test]
fn a_pod_that_is_deleted_ends_until_it_is_over() {
    let runs = json!({"running": {}});
    let mut deleted = pod(&[], &[&runs], "Running");
    deleted["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
    check(&deleted, "1/1", "Terminating");
    let mut over = pod(&[], &[&ended(0, "Completed")], "Succeeded");
    over["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
    check(&over, "0/1", "Completed");
}

#[test]
fn a_reason_of_the_pod_itself_counts_before_its_phase() {
    let mut evicted = pod(&[], &[], "Failed");
    evicted["status"]["reason"] = json!("Evicted");
    check(&evicted, "0/0", "Evicted");
}

#[test]
fn restarts_are_counted_with_the_last_ones_age() {
    let runs = json!({"running": {}});
    let mut restarted = pod(&[&ended(0, "Completed")], &[&runs, &runs], "Running");
    assert_eq!(summary(&restarted).restarts, "0");
    let ended_at = |time: &str| json!({"terminated": {"exitCode": 1, "finishedAt": time}});
    let containers = &mut restarted["status"]["containerStatuses"];
    containers[0]["restartCount"] = json!(2);
    assert_eq!(summary(&restarted).restarts, "2");
    let containers = &mut restarted["status"]["containerStatuses"];
    containers[0]["lastState"] = ended_at("1970-01-01T00:05:00Z");
    containers[1]["restartCount"] = json!(1);
    containers[1]["lastState"] = ended_at("1970-01-01T00:02:00Z");
    // Of init containers that are done nobody wants to know any more.
    restarted["status"]["initContainerStatuses"][0]["restartCount"] = json!(7);
    assert_eq!(summary(&restarted).restarts, "3 (5m ago)");
    restarted["status"]["initContainerStatuses"][0]["state"] = waits("CrashLoopBackOff");
    assert_eq!(summary(&restarted).restarts, "7");
}
