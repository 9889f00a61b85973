//! Pods for tests, desired and observed.

use std::time::{Duration, SystemTime};

use super::observed::{Container, Exit, Observed, Sandbox, State};
use crate::objects::manifest::{self, Object};
use crate::objects::{Name, Pod};

/// A pod `default/web` with this spec.
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

/// Returns the time that is this many seconds after 1970 began.
pub(super) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The sandbox `s<attempt>`.
pub(super) fn sandbox(attempt: u32, is_ready: bool) -> Sandbox {
    Sandbox {
        id: format!("s{attempt}"),
        attempt,
        is_ready,
        created: at(u64::from(attempt) + 1),
        handler: String::new(),
        address: is_ready.then(|| "10.0.0.7".to_owned()),
        grace: Duration::from_secs(5),
        started: at(1),
    }
}

/// The container `<name>-<attempt>` in the sandbox `s0`.
pub(super) fn container(name: &str, attempt: u32, state: State) -> Container {
    Container {
        id: format!("{name}-{attempt}"),
        sandbox: "s0".to_owned(),
        name: name.to_owned(),
        attempt,
        image_id: "sha256:1".to_owned(),
        created: at(u64::from(attempt) + 10),
        state,
        backoff: Duration::ZERO,
    }
}

impl Container {
    /// In another sandbox.
    pub(super) fn in_sandbox(mut self, attempt: u32) -> Self {
        self.sandbox = format!("s{attempt}");
        self
    }

    /// With a pause for the one after it.
    pub(super) fn backing_off(mut self, seconds: u64) -> Self {
        self.backoff = Duration::from_secs(seconds);
        self
    }
}

/// Since the hundredth second.
pub(super) fn running() -> State {
    State::Running { since: at(100) }
}

/// It ran from the hundredth second to the hundred and first.
pub(super) fn exited(code: i32) -> State {
    exited_after(code, 1)
}

/// It ran for so long from the hundredth second.
pub(super) fn exited_after(code: i32, seconds: u64) -> State {
    State::Exited(Exit {
        code,
        started: Some(at(100)),
        finished: at(100 + seconds),
        reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
        message: String::new(),
    })
}

/// The pod with these; the newest first, as always.
pub(super) fn observed(
    sandboxes: impl IntoIterator<Item = Sandbox>,
    containers: impl IntoIterator<Item = Container>,
) -> Observed {
    Observed {
        name: Name::new("default", "web"),
        uid: "u".to_owned(),
        sandboxes: sandboxes.into_iter().collect(),
        containers: containers.into_iter().collect(),
    }
}
