//! Pods: their state in the container runtime, the decision about their next step, and their status. All functions are
//! pure.

pub(crate) mod config;
pub(crate) mod decide;
pub(crate) mod failures;
#[cfg(test)]
mod fixture;
pub(crate) mod observed;
pub(crate) mod restart;
pub(crate) mod status;
mod steps;

/// Labels and annotations of sandboxes and containers. The runtime keeps them, and crustlet reads them after a restart.
pub(crate) mod labels {
    /// The pod's name. This label and the next three are kubelet's.
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// The ID of the crustlet that created the object, which is the ID of its root directory. Pods of a kubelet in the
    /// same runtime don't have this label.
    pub(crate) const OWNER: &str = "dev.crust.crustlet";
    /// The name of the node of the crustlet that created the object, for people who read the labels.
    pub(crate) const NODE: &str = "dev.crust.crustlet/node";

    /// On a sandbox: the pod's grace period in seconds. It is recorded because the manifest may be gone when the pod is
    /// ended.
    pub(crate) const GRACE: &str = "dev.crust.crustlet/grace";
    /// On a sandbox: when the pod's first sandbox was created, in nanoseconds since the Unix epoch.
    pub(crate) const STARTED: &str = "dev.crust.crustlet/started";
    /// On a container: the delay in seconds before the next container with the same name is started.
    pub(crate) const BACKOFF: &str = "dev.crust.crustlet/backoff";
    /// On a container: how often a container with the same name was started before. This annotation is kubelet's.
    pub(crate) const RESTARTS: &str = "io.kubernetes.container.restartCount";
}

pub(crate) use steps::{EndStep, PodStep, RunSandbox, StartContainer, StepSubject};
