//! Pods for tests, as manifests and as the container runtime reports them.

use std::time::{Duration, SystemTime};

use super::observed::{ContainerExit, ObservedContainer, ObservedPod, ObservedSandbox, RunState};
use crate::objects::manifest::{self, Object};
use crate::objects::{Name, Pod};

/// Returns the pod `default/web` with this spec.
pub(super) fn pod(spec: &str) -> Pod {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, uid: u, labels: {{app: shop}}}}\nspec: {spec}"
    );
    let mut manifests = manifest::read(&text).expect(spec);
    match manifests.remove(0).object {
        Object::Pod(pod) => *pod,
        other => panic!("{other:?}"),
    }
}

/// Returns the time this many seconds after the Unix epoch.
pub(super) fn at_second(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Returns the sandbox `s<attempt>`, created at second `attempt + 1`.
pub(super) fn sandbox(attempt: u32, is_ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: format!("s{attempt}"),
        attempt,
        is_ready,
        created: at_second(u64::from(attempt) + 1),
        handler: String::new(),
        address: is_ready.then(|| "10.0.0.7".to_owned()),
        grace: Duration::from_secs(5),
        started: at_second(1),
    }
}

/// Returns the container `<name>-<attempt>` in the sandbox `s0`, created at second `attempt + 10`.
pub(super) fn container(name: &str, attempt: u32, state: RunState) -> ObservedContainer {
    ObservedContainer {
        id: format!("{name}-{attempt}"),
        sandbox: "s0".to_owned(),
        name: name.to_owned(),
        attempt,
        image_id: "sha256:1".to_owned(),
        created: at_second(u64::from(attempt) + 10),
        state,
        backoff: Duration::ZERO,
    }
}

impl ObservedContainer {
    /// Moves the container to the sandbox `s<attempt>`.
    pub(super) fn in_sandbox(mut self, attempt: u32) -> Self {
        self.sandbox = format!("s{attempt}");
        self
    }

    /// Sets the delay before the next start.
    pub(super) fn backing_off(mut self, seconds: u64) -> Self {
        self.backoff = Duration::from_secs(seconds);
        self
    }
}

/// Returns the state of a container that has been running since second 100.
pub(super) fn running() -> RunState {
    RunState::Running {
        since: at_second(100),
    }
}

/// Returns the state of a container that ran from second 100 to second 101.
pub(super) fn exited(code: i32) -> RunState {
    exited_after(code, 1)
}

/// Returns the state of a container that was started at second 100 and ran for `seconds`.
pub(super) fn exited_after(code: i32, seconds: u64) -> RunState {
    RunState::Exited(ContainerExit {
        code,
        started: Some(at_second(100)),
        finished: at_second(100 + seconds),
        reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
        message: String::new(),
    })
}

/// Returns the pod `default/web` with these sandboxes and containers. Both have the newest first.
pub(super) fn observed_pod(
    sandboxes: impl IntoIterator<Item = ObservedSandbox>,
    containers: impl IntoIterator<Item = ObservedContainer>,
) -> ObservedPod {
    ObservedPod {
        name: Name::new("default", "web"),
        uid: "u".to_owned(),
        sandboxes: sandboxes.into_iter().collect(),
        containers: containers.into_iter().collect(),
    }
}
