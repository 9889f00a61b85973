//! What is kept with the runtime, so that a restart finds it: labels and annotations of sandboxes and containers.

/// kubelet's: the pod's name.
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
/// kubelet's: the pod's namespace.
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// kubelet's: the pod's uid.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
/// kubelet's: the container's name in the pod.
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// The id of the crustlet that made it, which is its root directory's. A kubelet's pods in the same runtime have none.
pub(crate) const OWNER: &str = "dev.crust.crustlet";
/// What that one called its node: for people.
pub(crate) const NODE: &str = "dev.crust.crustlet/node";

/// Of a sandbox, in seconds: what the pod's containers are given to end, whose manifest may be gone by then.
pub(crate) const GRACE: &str = "dev.crust.crustlet/grace";
/// Of a sandbox, in nanoseconds since 1970: when the pod's first one was made.
pub(crate) const STARTED: &str = "dev.crust.crustlet/started";
/// Of a container, in seconds: how long the one after it waits.
pub(crate) const BACKOFF: &str = "dev.crust.crustlet/backoff";
/// kubelet's, of a container: how often it was started before.
pub(crate) const RESTARTS: &str = "io.kubernetes.container.restartCount";
