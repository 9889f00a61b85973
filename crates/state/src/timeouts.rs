//! The timeouts of creates and hooks. Each is shorter than the timeout of the program that waits for it, so that the
//! error is reported by the program that knows its cause. Their sum may be longer, because any one part of a create may
//! take long.

use std::time::Duration;

/// Kubelet's timeout of CRI's `RunPodSandbox`: twice its `runtimeRequestTimeout`.
const KUBELET_SANDBOX: Duration = Duration::from_secs(240);
/// Kubelet's timeout of CRI's `CreateContainer`.
const KUBELET_CONTAINER: Duration = Duration::from_secs(120);

/// The timeout of runcrust's own part of a create, before it execs the delegate. It doesn't include the mounts of
/// a sandbox's volumes, because the sandbox's hook makes them.
pub const CREATE: Duration = Duration::from_secs(110);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookTimeouts {
    /// The timeout after which the hook itself gives up.
    pub hook: Duration,
    /// The timeout after which the delegate kills the hook, as written to the config: whole seconds.
    pub delegate: Duration,
}

const fn timeouts(hook: u64, delegate: u64) -> HookTimeouts {
    HookTimeouts {
        hook: Duration::from_secs(hook),
        delegate: Duration::from_secs(delegate),
    }
}

/// The timeouts of the hook that mounts a pod's volumes in its sandbox. Applying fsGroup may take long.
pub const SANDBOX: HookTimeouts = timeouts(210, 225);

/// The timeouts of the hook that mounts volumes in a container.
pub const CONTAINER: HookTimeouts = timeouts(105, 115);

/// The timeouts of hooks that only write records.
pub const RECORD: HookTimeouts = timeouts(20, 30);

const _: () = {
    assert!(SANDBOX.hook.as_secs() < SANDBOX.delegate.as_secs());
    assert!(SANDBOX.delegate.as_secs() < KUBELET_SANDBOX.as_secs());
    assert!(CONTAINER.hook.as_secs() < CONTAINER.delegate.as_secs());
    assert!(CONTAINER.delegate.as_secs() < KUBELET_CONTAINER.as_secs());
    assert!(RECORD.hook.as_secs() < RECORD.delegate.as_secs());
    assert!(RECORD.delegate.as_secs() < KUBELET_CONTAINER.as_secs());
    assert!(CREATE.as_secs() < KUBELET_CONTAINER.as_secs());
};
