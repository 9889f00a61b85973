//! Pods: what exists of them in the runtime, their next step, and their status. All of these are pure functions.

pub(crate) mod config;
pub(crate) mod decide;
pub(crate) mod failures;
#[cfg(test)]
mod fixture;
pub(crate) mod observed;
pub(crate) mod restart;
pub(crate) mod status;
mod steps;

/// Labels and annotations of sandboxes and containers, which the runtime keeps and a restarted crustlet reads.
pub(crate) mod labels {
    /// The pod's name, as kubelet labels it.
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    /// The pod's namespace, as kubelet labels it.
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// The pod's UID, as kubelet labels it.
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    /// The container's name in the pod, as kubelet labels it.
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// The ID of the crustlet that made it, which is its root directory's. A kubelet's pods in the same runtime have
    /// none.
    pub(crate) const OWNER: &str = "dev.crust.crustlet";
    /// The name of that crustlet's node, for people.
    pub(crate) const NODE: &str = "dev.crust.crustlet/node";

    /// On a sandbox: the seconds that the pod's containers have to end. The manifest may be gone by then.
    pub(crate) const GRACE: &str = "dev.crust.crustlet/grace";
    /// On a sandbox: when the pod's first one was made, in nanoseconds since 1970.
    pub(crate) const STARTED: &str = "dev.crust.crustlet/started";
    /// On a container: the seconds that the next one waits.
    pub(crate) const BACKOFF: &str = "dev.crust.crustlet/backoff";
    /// On a container: how often it was started before, as kubelet annotates it.
    pub(crate) const RESTARTS: &str = "io.kubernetes.container.restartCount";
}

pub(crate) use steps::{End, PodStep, RunSandbox, StartContainer, Subject};
