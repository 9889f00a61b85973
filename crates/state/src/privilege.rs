//! Whether this process is root on the node, or only somewhere.

use std::path::Path;

use crust_blockfs::bounded::{self, KERNELS_WORD};

/// What a file of an id that a user namespace doesn't know seems to be owned by
/// (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;

/// Whether a file of this owner is root's: in a user namespace those of the node's root seem to be
/// nobody's.
pub(crate) fn is_roots(owner: u32) -> bool {
    owner == 0 || (owner == OVERFLOW_UID && is_rootless())
}

/// Whether the caller is rootless: another user, or root in a user namespace. It can neither mount a
/// volume nor look at what root has staged.
#[must_use]
pub fn is_rootless() -> bool {
    !rustix::process::geteuid().is_root() || in_user_namespace()
}

/// The first user namespace maps every id to itself (`user_namespaces(7)`).
pub(crate) fn in_user_namespace() -> bool {
    let map = Path::new("/proc/self/uid_map");
    let map = bounded::read_to_string(map, KERNELS_WORD).unwrap_or_default();
    !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
