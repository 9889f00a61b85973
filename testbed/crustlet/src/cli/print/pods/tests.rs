//! Tests of the summaries. The expected summaries are kubectl's.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::*;

/// Returns a time ten minutes after the epoch. The pods' timestamps are within these minutes.
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
        let names = (0..count).map(|index| json!({"name": format!("{prefix}{index}")}));
        names.collect()
    };
    let statuses = |prefix: &str, states: &[&Value]| -> Vec<Value> {
        let states = states.iter().enumerate();
        let states = states.map(|(index, state)| container(&format!("{prefix}{index}"), state));
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

fn waiting_state(reason: &str) -> Value {
    json!({"waiting": {"reason": reason}})
}

fn terminated_state(code: i32, reason: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason}})
}

#[test]
fn the_status_is_the_reason_of_a_container() {
    let running = json!({"running": {}});
    let creating = waiting_state("ContainerCreating");
    for (containers, phase, ready, status) in [
        (&[][..], "Pending", "0/0", "Pending"),
        (&[&creating], "Pending", "0/1", "ContainerCreating"),
        (&[&running], "Running", "1/1", "Running"),
        (
            &[&running, &waiting_state("CrashLoopBackOff")],
            "Running",
            "1/2",
            "CrashLoopBackOff",
        ),
        (
            &[&waiting_state("ImagePullBackOff")],
            "Pending",
            "0/1",
            "ImagePullBackOff",
        ),
        (
            &[&terminated_state(0, "Completed")],
            "Succeeded",
            "0/1",
            "Completed",
        ),
        (&[&terminated_state(1, "Error")], "Failed", "0/1", "Error"),
        (
            &[
                &terminated_state(137, "OOMKilled"),
                &terminated_state(0, "Completed"),
            ],
            "Failed",
            "0/2",
            "OOMKilled",
        ),
        (&[&terminated_state(3, "")], "Failed", "0/1", "ExitCode:3"),
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
fn completed_is_not_the_status_while_a_container_is_running() {
    let running = json!({"running": {}});
    let mut one_runs = pod(
        &[],
        &[&terminated_state(0, "Completed"), &running],
        "Running",
    );
    check(&one_runs, "1/2", "NotReady");
    one_runs["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    check(&one_runs, "1/2", "Running");
}

#[test]
fn the_status_is_that_of_the_first_unfinished_init_container() {
    let done = terminated_state(0, "Completed");
    let initializing = waiting_state("PodInitializing");
    for (init, status) in [
        (&[&json!({"running": {}}), &initializing][..], "Init:0/2"),
        (&[&done, &initializing], "Init:1/2"),
        (&[&initializing, &initializing], "Init:0/2"),
        (
            &[&terminated_state(1, "Error"), &initializing],
            "Init:Error",
        ),
        (
            &[&terminated_state(1, ""), &initializing],
            "Init:ExitCode:1",
        ),
        (
            &[&waiting_state("CrashLoopBackOff"), &initializing],
            "Init:CrashLoopBackOff",
        ),
        (&[&done, &done], "PodInitializing"),
    ] {
        check(&pod(init, &[&initializing], "Pending"), "0/1", status);
    }
}

#[test]
fn a_started_sidecar_counts_as_ready() {
    let running = json!({"running": {}});
    let mut pod = pod(&[&running], &[&waiting_state("PodInitializing")], "Pending");
    pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    check(&pod, "1/2", "PodInitializing");
    pod["status"]["initContainerStatuses"][0]["started"] = json!(false);
    check(&pod, "0/2", "Init:0/1");
}

#[test]
fn a_failed_sidecar_does_not_change_the_ready_count() {
    let mut pod = pod(
        &[&waiting_state("CrashLoopBackOff")],
        &[&json!({"running": {}})],
        "Running",
    );
    pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    pod["status"]["conditions"] = json!([{"type": "Initialized", "status": "True"}]);
    check(&pod, "1/2", "Init:CrashLoopBackOff");
}

#[test]
fn a_deleted_pod_is_terminating_until_it_has_ended() {
    let running = json!({"running": {}});
    let mut deleted = pod(&[], &[&running], "Running");
    deleted["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
    check(&deleted, "1/1", "Terminating");
    let mut ended = pod(&[], &[&terminated_state(0, "Completed")], "Succeeded");
    ended["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
    check(&ended, "0/1", "Completed");
}

#[test]
fn the_reason_of_the_pod_takes_precedence_over_its_phase() {
    let mut evicted = pod(&[], &[], "Failed");
    evicted["status"]["reason"] = json!("Evicted");
    check(&evicted, "0/0", "Evicted");
}

#[test]
fn restarts_have_the_age_of_the_last_one() {
    let running = json!({"running": {}});
    let mut restarted = pod(
        &[&terminated_state(0, "Completed")],
        &[&running, &running],
        "Running",
    );
    assert_eq!(summary(&restarted).restarts, "0");
    let ended_at = |time: &str| json!({"terminated": {"exitCode": 1, "finishedAt": time}});
    let containers = &mut restarted["status"]["containerStatuses"];
    containers[0]["restartCount"] = json!(2);
    assert_eq!(summary(&restarted).restarts, "2");
    let containers = &mut restarted["status"]["containerStatuses"];
    containers[0]["lastState"] = ended_at("1970-01-01T00:05:00Z");
    containers[1]["restartCount"] = json!(1);
    containers[1]["lastState"] = ended_at("1970-01-01T00:02:00Z");
    // The restarts of init containers don't count once they have finished.
    restarted["status"]["initContainerStatuses"][0]["restartCount"] = json!(7);
    assert_eq!(summary(&restarted).restarts, "3 (5m ago)");
    restarted["status"]["initContainerStatuses"][0]["state"] = waiting_state("CrashLoopBackOff");
    assert_eq!(summary(&restarted).restarts, "7");
}
