//! The progress of a pod that `crustlet run` waits for.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not all containers are running. They will be started, or restarted.
    Waiting,
    /// All containers have been started, and none has failed since.
    Running,
    /// The pod has ended successfully.
    Succeeded,
    /// The pod has failed and won't be restarted. Contains the cause.
    Failed(String),
}

impl Progress {
    pub(super) fn from_pod(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
        let containers = || {
            let statuses = status.and_then(|status| status.container_statuses.as_ref());
            statuses.into_iter().flatten()
        };
        match status.and_then(|status| status.phase.as_deref()) {
            Some("Succeeded") => return Self::Succeeded,
            Some("Failed") => {
                let init = status.and_then(|status| status.init_container_statuses.as_ref());
                let mut statuses = init.into_iter().flatten().chain(containers());
                let cause = text(status.and_then(|status| status.message.as_ref()))
                    .or_else(|| statuses.find_map(failure))
                    .or_else(|| text(status.and_then(|status| status.reason.as_ref())));
                return Self::Failed(cause.unwrap_or_else(|| "no reason given".to_owned()));
            }
            Some("Running") => {}
            _ => return Self::Waiting,
        }
        let spec = pod.spec.as_ref();
        let is_never_restarted =
            spec.is_some_and(|spec| spec.restart_policy.as_deref() == Some("Never"));
        if let Some(failure) = containers().find_map(failure) {
            // The pod is still running, because its other containers may keep running.
            return if is_never_restarted {
                Self::Failed(failure)
            } else {
                Self::Waiting
            };
        }
        let expected = spec.map_or(0, |spec| spec.containers.len());
        if containers()
            .filter(|container| was_started(container))
            .count()
            < expected
        {
            Self::Waiting
        } else {
            Self::Running
        }
    }
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// Returns whether a container has been started: it is running, and its startup probe has succeeded, or it has ended.
fn was_started(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    let runs =
        state.is_some_and(|state| state.running.is_some()) && container.started != Some(false);
    runs || terminated(container).is_some()
}

/// Returns how a container failed. `None` if it hasn't ended, or has succeeded.
fn failure(container: &ContainerStatus) -> Option<String> {
    let ended = terminated(container).filter(|terminated| terminated.exit_code != 0)?;
    let details = [&ended.message, &ended.reason];
    let details = details
        .into_iter()
        .flatten()
        .find(|detail| !detail.is_empty());
    let details = details
        .map(|detail| format!(": {detail}"))
        .unwrap_or_default();
    Some(format!(
        "container {} ended with exit code {}{details}",
        container.name, ended.exit_code
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a pod with two containers in these states.
    fn pod(phase: &str, policy: &str, one: &serde_json::Value, two: &serde_json::Value) -> Pod {
        let status = |name: &str, state: &serde_json::Value| {
            json!({
                "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            })
        };
        let document = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"restartPolicy": policy, "containers": [{"name": "one"}, {"name": "two"}]},
            "status": {"phase": phase, "containerStatuses": [status("one", one), status("two", two)]},
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_pod_is_running_when_all_its_containers_have_been_started() {
        let running = json!({"running": {}});
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        let crashing = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let failed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let failed_progress =
            || Progress::Failed("container two ended with exit code 3: Error".to_owned());
        for (phase, policy, one, two, expected) in [
            ("Pending", "Always", &creating, &creating, Progress::Waiting),
            ("Running", "Always", &running, &creating, Progress::Waiting),
            ("Running", "Always", &running, &running, Progress::Running),
            ("Running", "Never", &running, &done, Progress::Running),
            ("Running", "Always", &running, &crashing, Progress::Waiting),
            ("Running", "Always", &running, &failed, Progress::Waiting),
            ("Running", "OnFailure", &running, &failed, Progress::Waiting),
            ("Running", "Never", &running, &failed, failed_progress()),
            ("Failed", "Never", &done, &failed, failed_progress()),
            ("Succeeded", "Never", &done, &done, Progress::Succeeded),
        ] {
            let found = Progress::from_pod(&pod(phase, policy, one, two));
            assert_eq!(found, expected, "{phase} {policy} {one} {two}");
        }
    }

    #[test]
    fn a_pod_is_waiting_until_its_startup_probe_succeeds() {
        let running = json!({"running": {}});
        let mut pod = pod("Running", "Always", &running, &running);
        let containers = pod.status.as_mut().unwrap().container_statuses.as_mut();
        containers.unwrap()[1].started = Some(false);
        assert_eq!(Progress::from_pod(&pod), Progress::Waiting);
    }

    #[test]
    fn a_failed_pod_has_its_reason_and_one_without_status_waits() {
        let mut pod = pod("Failed", "Always", &json!({}), &json!({}));
        let status = pod.status.as_mut().unwrap();
        status.reason = Some("Evicted".to_owned());
        assert_eq!(
            Progress::from_pod(&pod),
            Progress::Failed("Evicted".to_owned())
        );
        let status = pod.status.as_mut().unwrap();
        status.message = Some("no room".to_owned());
        assert_eq!(
            Progress::from_pod(&pod),
            Progress::Failed("no room".to_owned())
        );
        pod.status = None;
        assert_eq!(Progress::from_pod(&pod), Progress::Waiting);
    }
}
