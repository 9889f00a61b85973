//! Whether this process is root on the node, or only somewhere.

/// What a file of an id that a user namespace doesn't know seems to be owned by
/// (`/proc/sys/kernel/overflowuid`).
pub(crate) const OVERFLOW_UID: u32 = 65534;

/// Whether the caller is rootless: another user, or root in a user namespace. It can neither mount a
/// volume nor look at what root has staged.
#[must_use]
pub fn is_rootless() -> bool {
    !rustix::process::geteuid().is_root() || in_user_namespace()
}

/// The first user namespace maps every id to itself (`user_namespaces(7)`).
pub(crate) fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
