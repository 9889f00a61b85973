//! The steps of a pod.

use std::time::{Duration, SystemTime};

/// A step of a pod. A pod has one step at a time, and its state is read again after each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodStep {
    /// Call `RunPodSandbox`.
    RunSandbox(RunSandbox),
    /// Have the runtime handler mount volumes in a new sandbox (KEP-2857's earlier draft).
    PublishToRuntime {
        /// The ID of the sandbox.
        sandbox: String,
    },
    /// Call `CreateContainer` and `StartContainer`.
    StartContainer(StartContainer),
    /// Stop or remove something. The pod's manifest isn't needed.
    End(EndStep),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunSandbox {
    /// The number of sandboxes that the pod had before.
    pub(crate) attempt: u32,
    /// The IDs of the earlier sandboxes. They are stopped first, because they still have the pod's network.
    pub(crate) stop: Vec<String>,
    /// When the pod's first sandbox was created. `None` if this is the first.
    pub(crate) started: Option<SystemTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartContainer {
    /// The name in the pod.
    pub(crate) name: String,
    /// The number of times that a container with this name was started before.
    pub(crate) attempt: u32,
    /// The ID of the sandbox.
    pub(crate) sandbox: String,
    pub(crate) sandbox_attempt: u32,
    /// The delay before the next container with this name is started.
    pub(crate) backoff: Duration,
}

/// A step that stops or removes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndStep {
    /// Stop all containers, and then the sandboxes.
    StopPod {
        /// The IDs and names of the containers that may have processes.
        containers: Vec<(String, String)>,
        /// The IDs of all sandboxes.
        sandboxes: Vec<String>,
        /// The time that the containers have to end.
        grace: Duration,
    },
    /// Stop a container whose state is unknown, or that isn't in the manifest any more.
    StopContainer {
        id: String,
        /// The name in the pod.
        name: String,
        /// The time that the container has to end.
        grace: Duration,
    },
    /// Remove an ended container, with its log.
    RemoveContainer {
        id: String,
        /// The name in the pod.
        name: String,
        /// The number of times that a container with this name was started before.
        attempt: u32,
    },
    /// Remove an old sandbox.
    RemoveSandbox { id: String },
    /// Remove everything that the runtime still has for a stopped pod.
    RemovePod {
        /// The IDs of all containers.
        containers: Vec<String>,
        /// The IDs of all sandboxes.
        sandboxes: Vec<String>,
    },
}

/// The subject of a step. Each subject has its own failures and backoff.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StepSubject {
    /// The sandbox, with the volumes that the runtime handler mounts in it.
    Sandbox,
    /// A container, by its name in the pod.
    Container(String),
    /// Everything that is stopped or removed for the pod.
    End,
}

impl PodStep {
    pub(crate) fn subject(&self) -> StepSubject {
        match self {
            Self::RunSandbox(_) | Self::PublishToRuntime { .. } => StepSubject::Sandbox,
            Self::StartContainer(start) => StepSubject::Container(start.name.clone()),
            Self::End(_) => StepSubject::End,
        }
    }
}
