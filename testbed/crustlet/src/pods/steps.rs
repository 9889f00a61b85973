//! The steps of a pod.

use std::time::{Duration, SystemTime};

/// A step of a pod's. One at a time: what there is is looked at anew after each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodStep {
    /// `RunPodSandbox`
    RunSandbox(RunSandbox),
    /// The runtime handler is told of volumes, now that the sandbox is there (KEP-2857's earlier draft).
    PublishToRuntime {
        /// Its id.
        sandbox: String,
    },
    /// `CreateContainer` and `StartContainer`
    StartContainer(StartContainer),
    /// Something ends.
    End(End),
}

/// A sandbox to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunSandbox {
    /// How many there were before it.
    pub(crate) attempt: u32,
    /// The ids of those, whose networks are in the way until they are stopped.
    pub(crate) stop: Vec<String>,
    /// When the pod's first one was made, if this isn't it.
    pub(crate) started: Option<SystemTime>,
}

/// A container to be made and started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartContainer {
    /// In the pod.
    pub(crate) name: String,
    /// How often it was started before.
    pub(crate) attempt: u32,
    /// The id of that which it is made in.
    pub(crate) sandbox: String,
    /// The attempt of the sandbox.
    pub(crate) sandbox_attempt: u32,
    /// How long the one after it is to wait.
    pub(crate) backoff: Duration,
}

/// A step that ends something, for which the pod's manifest isn't needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// All containers, then the sandboxes.
    StopPod {
        /// Names by the ids of those that live.
        containers: Vec<(String, String)>,
        /// Ids.
        sandboxes: Vec<String>,
        /// How long containers have to end.
        grace: Duration,
    },
    /// One of which the runtime can't tell whether it lives, or that isn't the pod's any more.
    StopContainer {
        /// The runtime's.
        id: String,
        /// In the pod.
        name: String,
        /// How long it has to end.
        grace: Duration,
    },
    /// One that doesn't live, with its log.
    RemoveContainer {
        /// The runtime's.
        id: String,
        /// In the pod.
        name: String,
        /// How often it was started before.
        attempt: u32,
    },
    /// One that isn't the pod's any more.
    RemoveSandbox {
        /// The runtime's.
        id: String,
    },
    /// Remove all that the runtime has of a stopped pod.
    RemovePod {
        /// Ids.
        containers: Vec<String>,
        /// Ids.
        sandboxes: Vec<String>,
    },
}

/// The subject of a step. Subjects fail independently of each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// The sandbox, as the containers need it.
    Sandbox,
    /// A container, by its name in the pod.
    Container(String),
    /// What is ended or removed.
    End,
}

impl PodStep {
    /// Returns the subject of the step.
    pub(crate) fn subject(&self) -> Subject {
        match self {
            Self::RunSandbox(_) | Self::PublishToRuntime { .. } => Subject::Sandbox,
            Self::StartContainer(it) => Subject::Container(it.name.clone()),
            Self::End(_) => Subject::End,
        }
    }
}
