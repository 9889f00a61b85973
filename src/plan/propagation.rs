//! Refuses mounts of volumes that would propagate to the host: those that are shared, and those below a shared mount.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::error::PlanError;
use super::input::PlanInput;
use super::mounts::is_bind;
use super::types::PlannedMount;
use crate::matching::NodeLookup;
use crate::oci::Mount;

/// Refuses a volume's mount that would appear in the host's mount table.
pub(super) fn check(
    input: &PlanInput<'_>,
    planned: &[PlannedMount],
    node: &impl NodeLookup,
) -> Result<(), PlanError> {
    let first = &planned[0].found.volume.volume_name();
    let document = |source| PlanError::document(first, source);
    let root = input.details.root_propagation().map_err(document)?;
    let rootfs = input.details.root_path().map_err(document)?;
    let root_is_shared = root.is_some_and(|it| is_shared(&it));
    let mut requested = input.mounts.iter().filter_map(mount_propagation);
    if !root_is_shared && !requested.any(is_shared) {
        // The usual case. The destinations need not be resolved.
        return Ok(());
    }
    let rootfs = input.bundle.join(rootfs.as_deref().unwrap_or_default());
    let resolve =
        |mount: &Mount<'_>| node.resolve_in_rootfs(&rootfs, Path::new(&*mount.destination));
    let destinations: Vec<PathBuf> = input.mounts.iter().map(resolve).collect();
    let tree = PropagationTree::new(input.mounts, &destinations, planned, root_is_shared);
    for mount in planned {
        let volume = mount.found.volume.volume_name();
        if propagation_option(&mount.options).is_some_and(is_shared) {
            return Err(PlanError::Unsupported {
                volume,
                reason: "its mount is to be shared with the host (mountPropagation Bidirectional), \
                         which isn't supported for a deferred volume; hint: use HostToContainer or None",
            });
        }
        if let Some(shared) = tree.shared_holder(mount.index) {
            return Err(PlanError::SharedMount {
                volume,
                destination: mount.destination.display().to_string(),
                shared: input.mounts[shared].destination.to_string(),
            });
        }
    }
    Ok(())
}

/// The propagation of a config's mounts, by their index. Each mount is visited once, however deep the mounts are
/// stacked.
struct PropagationTree {
    /// The mount on which each mount is made: the deepest earlier mount, or the last one of several at the same
    /// destination. `None` for the root file system: the delegate makes its mount private.
    holders: Vec<Option<usize>>,
    /// The mount through which each mount is shared with the host: the mount itself or one that it is made on. `None`
    /// if it isn't shared.
    shared: Vec<Option<usize>>,
}

impl PropagationTree {
    fn new(
        mounts: &[Mount<'_>],
        destinations: &[PathBuf],
        planned: &[PlannedMount],
        root_is_shared: bool,
    ) -> Self {
        let planned: HashSet<usize> = planned.iter().map(|planned| planned.index).collect();
        let (mut holders, mut shared) = (Vec::new(), Vec::new());
        let mut last: HashMap<&Path, usize> = HashMap::new();
        for (index, (mount, destination)) in mounts.iter().zip(destinations).enumerate() {
            let mut parents = destination.ancestors();
            let holder = parents.find_map(|parent| last.get(parent).copied());
            shared.push(match mount_propagation(mount) {
                Some(propagation) => is_shared(propagation).then_some(index),
                // A bind is a peer of its source, unless the delegate has made the whole tree private.
                None if is_bind(mount) && !planned.contains(&index) => {
                    root_is_shared.then_some(index)
                }
                // A new file system is shared if the mount below it is.
                None => holder.and_then(|holder| shared[holder]),
            });
            holders.push(holder);
            last.insert(destination, index);
        }
        Self { holders, shared }
    }

    /// Returns the shared mount through which the mount with this index would appear on the host; `None` if it
    /// wouldn't.
    fn shared_holder(&self, index: usize) -> Option<usize> {
        self.shared[self.holders[index]?]
    }
}

/// Returns the propagation that the options give to the whole mount; `None` if they don't set one. The submounts of a
/// recursive bind keep their own propagation, unless the option is recursive too.
fn mount_propagation<'m>(mount: &'m Mount<'_>) -> Option<&'m str> {
    let option = propagation_option(&mount.options)?;
    let is_tree = mount.options.iter().any(|option| option == "rbind");
    (is_shared(option) || option.starts_with('r') || !is_tree).then_some(option)
}

/// Returns the propagation option. The last of several contradicting options counts.
fn propagation_option<S: AsRef<str>>(options: &[S]) -> Option<&str> {
    let mut options = options.iter().rev().map(AsRef::as_ref);
    options.find(|option| {
        matches!(
            option.strip_prefix('r').unwrap_or(option),
            "private" | "slave" | "shared" | "unbindable"
        )
    })
}

fn is_shared(propagation: &str) -> bool {
    matches!(propagation, "shared" | "rshared")
}
