//! How long things may take. Each limit is below that of whoever waits for it: only so the one who
//! knows the cause is the one who tells it.

use std::time::Duration;

/// What kubelet gives CRI's `RunPodSandbox` (twice its `runtimeRequestTimeout`), and
/// `CreateContainer`.
const KUBELETS_SANDBOX: Duration = Duration::from_secs(240);
const KUBELETS_CONTAINER: Duration = Duration::from_secs(120);

/// runcrust's own part of a container's create. A sandbox's mounts are its hook's.
pub const CREATE: Duration = Duration::from_secs(110);

/// A hook's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookLimits {
    /// Its own.
    pub own: Duration,
    /// The delegate's for it, as the config has it: whole seconds.
    pub delegates: Duration,
}

const fn hook(own: u64, delegates: u64) -> HookLimits {
    HookLimits {
        own: Duration::from_secs(own),
        delegates: Duration::from_secs(delegates),
    }
}

/// Of the hook that mounts a pod's volumes in its sandbox: fsGroup may take long.
pub const SANDBOX: HookLimits = hook(210, 225);

/// Of those that mount in a container, or wait for others that do.
pub const CONTAINER: HookLimits = hook(105, 115);

/// Of those that only take a container off records: kubelet tries again.
pub const RELEASE: HookLimits = hook(20, 30);

const _: () = {
    assert!(SANDBOX.own.as_secs() < SANDBOX.delegates.as_secs());
    assert!(SANDBOX.delegates.as_secs() < KUBELETS_SANDBOX.as_secs());
    assert!(CONTAINER.own.as_secs() < CONTAINER.delegates.as_secs());
    assert!(CONTAINER.delegates.as_secs() < KUBELETS_CONTAINER.as_secs());
    assert!(RELEASE.own.as_secs() < RELEASE.delegates.as_secs());
    assert!(RELEASE.delegates.as_secs() < KUBELETS_CONTAINER.as_secs());
    assert!(CREATE.as_secs() < KUBELETS_CONTAINER.as_secs());
};
