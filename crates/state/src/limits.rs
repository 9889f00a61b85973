//! How long things may take. Each limit is below that of whoever waits for it: only so the one who
//! knows the cause is the one who tells it. (Not their sum: of a create's parts one may take long.)

use std::time::Duration;

/// The time limits of kubelet for CRI's `RunPodSandbox` (twice its `runtimeRequestTimeout`), and for `CreateContainer`.
const KUBELETS_SANDBOX: Duration = Duration::from_secs(240);
const KUBELETS_CONTAINER: Duration = Duration::from_secs(120);

/// runcrust's own part of a container's create. A sandbox's mounts are its hook's.
pub const CREATE: Duration = Duration::from_secs(110);

/// The time limits of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookLimits {
    /// The limit that the hook keeps itself.
    pub own: Duration,
    /// The limit after which the delegate kills it, as the config has it: whole seconds.
    pub delegates: Duration,
}

const fn hook(own: u64, delegates: u64) -> HookLimits {
    HookLimits {
        own: Duration::from_secs(own),
        delegates: Duration::from_secs(delegates),
    }
}

/// The limits of the hook that mounts a pod's volumes in its sandbox: fsGroup may take long.
pub const SANDBOX: HookLimits = hook(210, 225);

/// The limits of the hook that mounts in a container.
pub const CONTAINER: HookLimits = hook(105, 115);

/// The limits of the hooks that only write records.
pub const RECORD: HookLimits = hook(20, 30);

const _: () = {
    assert!(SANDBOX.own.as_secs() < SANDBOX.delegates.as_secs());
    assert!(SANDBOX.delegates.as_secs() < KUBELETS_SANDBOX.as_secs());
    assert!(CONTAINER.own.as_secs() < CONTAINER.delegates.as_secs());
    assert!(CONTAINER.delegates.as_secs() < KUBELETS_CONTAINER.as_secs());
    assert!(RECORD.own.as_secs() < RECORD.delegates.as_secs());
    assert!(RECORD.delegates.as_secs() < KUBELETS_CONTAINER.as_secs());
    assert!(CREATE.as_secs() < KUBELETS_CONTAINER.as_secs());
};
