//! The progress of a pod that is waited for.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// It will run, or be started again.
    Waits,
    /// All its containers have been started, and none has failed since.
    Runs,
    /// It has ended well.
    Succeeded,
    /// It won't run any more, and why.
    Failed(String),
}

impl Progress {
    /// Returns the progress of an existing pod.
    pub(super) fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let text = |text: Option<&String>| text.filter(|it| !it.is_empty()).cloned();
        let containers = || {
            let statuses = status.and_then(|it| it.container_statuses.as_ref());
            statuses.into_iter().flatten()
        };
        match status.and_then(|it| it.phase.as_deref()) {
            Some("Succeeded") => return Self::Succeeded,
            Some("Failed") => {
                let init = status.and_then(|it| it.init_container_statuses.as_ref());
                let mut ended = init.into_iter().flatten().chain(containers());
                let told = text(status.and_then(|it| it.message.as_ref()))
                    .or_else(|| ended.find_map(failure))
                    .or_else(|| text(status.and_then(|it| it.reason.as_ref())));
                return Self::Failed(told.unwrap_or_else(|| "it doesn't say why".to_owned()));
            }
            Some("Running") => {}
            _ => return Self::Waits,
        }
        let spec = pod.spec.as_ref();
        let never = spec.is_some_and(|it| it.restart_policy.as_deref() == Some("Never"));
        if let Some(failure) = containers().find_map(failure) {
            // The others go on for as long as they like.
            return if never {
                Self::Failed(failure)
            } else {
                Self::Waits
            };
        }
        let wanted = spec.map_or(0, |it| it.containers.len());
        if containers().filter(|it| was_started(it)).count() < wanted {
            Self::Waits
        } else {
            Self::Runs
        }
    }
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// It runs, by its startup probe too where it has one; or it was done before anybody looked.
fn was_started(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    let runs = state.is_some_and(|it| it.running.is_some()) && container.started != Some(false);
    runs || terminated(container).is_some()
}

/// Returns the reason for which a container has ended, unless that was a success.
fn failure(container: &ContainerStatus) -> Option<String> {
    let ended = terminated(container).filter(|it| it.exit_code != 0)?;
    let said = [&ended.message, &ended.reason];
    let said = said.into_iter().flatten().find(|it| !it.is_empty());
    let why = said.map(|it| format!(": {it}")).unwrap_or_default();
    Some(format!(
        "container {} ended with exit code {}{why}",
        container.name, ended.exit_code
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pod of two containers, in such states.
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
    fn a_pod_runs_when_all_its_containers_have_been_started() {
        let running = json!({"running": {}});
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        let crashing = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let failed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let ended = || Progress::Failed("container two ended with exit code 3: Error".to_owned());
        for (phase, policy, one, two, expected) in [
            ("Pending", "Always", &creating, &creating, Progress::Waits),
            ("Running", "Always", &running, &creating, Progress::Waits),
            ("Running", "Always", &running, &running, Progress::Runs),
            ("Running", "Never", &running, &done, Progress::Runs),
            ("Running", "Always", &running, &crashing, Progress::Waits),
            ("Running", "Always", &running, &failed, Progress::Waits),
            ("Running", "OnFailure", &running, &failed, Progress::Waits),
            ("Running", "Never", &running, &failed, ended()),
            ("Failed", "Never", &done, &failed, ended()),
            ("Succeeded", "Never", &done, &done, Progress::Succeeded),
        ] {
            let found = Progress::of(&pod(phase, policy, one, two));
            assert_eq!(found, expected, "{phase} {policy} {one} {two}");
        }
    }

    #[test]
    fn a_startup_probe_is_waited_for() {
        let running = json!({"running": {}});
        let mut pod = pod("Running", "Always", &running, &running);
        let containers = pod.status.as_mut().unwrap().container_statuses.as_mut();
        containers.unwrap()[1].started = Some(false);
        assert_eq!(Progress::of(&pod), Progress::Waits);
    }

    #[test]
    fn a_pod_without_a_status_waits_and_one_that_failed_says_why() {
        let mut pod = pod("Failed", "Always", &json!({}), &json!({}));
        let status = pod.status.as_mut().unwrap();
        status.reason = Some("Evicted".to_owned());
        assert_eq!(Progress::of(&pod), Progress::Failed("Evicted".to_owned()));
        let status = pod.status.as_mut().unwrap();
        status.message = Some("no room".to_owned());
        assert_eq!(Progress::of(&pod), Progress::Failed("no room".to_owned()));
        pod.status = None;
        assert_eq!(Progress::of(&pod), Progress::Waits);
    }
}
