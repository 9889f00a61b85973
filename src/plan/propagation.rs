//! A volume is never seen on the host: its mount isn't shared, nor made on one that is.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::error::PlanError;
use super::input::PlanInput;
use super::mounts::is_bind;
use super::types::PlannedMount;
use crate::matching::Node;
use crate::oci::Mount;

/// Refuses what would come into the host's mount table.
pub(super) fn check(
    input: &PlanInput<'_>,
    planned: &[PlannedMount],
    node: &impl Node,
) -> Result<(), PlanError> {
    let first = &planned[0].found.volume.volume_name();
    let document = |source| PlanError::document(first, source);
    let root = input.details.root_propagation().map_err(document)?;
    let rootfs = input.details.root_path().map_err(document)?;
    let root_is_shared = root.is_some_and(|it| is_shared(&it));
    let mut asked = input.mounts.iter().filter_map(effective);
    if !root_is_shared && !asked.any(is_shared) {
        // Almost always, and where each mount is made need not be found out.
        return Ok(());
    }
    let rootfs = input.bundle.join(rootfs.as_deref().unwrap_or_default());
    let place = |mount: &Mount<'_>| node.within(&rootfs, Path::new(&*mount.destination));
    let places: Vec<PathBuf> = input.mounts.iter().map(place).collect();
    let tree = Tree::of(input.mounts, &places, planned, root_is_shared);
    for mount in planned {
        let volume = mount.found.volume.volume_name();
        if said(&mount.options).is_some_and(is_shared) {
            return Err(PlanError::Unsupported {
                volume,
                what: "its mount is to be shared with the host (mountPropagation Bidirectional), \
                       and a deferred volume never is; hint: use HostToContainer or None",
            });
        }
        if let Some(shared) = tree.shares(mount.index) {
            return Err(PlanError::Shared {
                volume,
                destination: mount.destination.display().to_string(),
                shared: input.mounts[shared].destination.to_string(),
            });
        }
    }
    Ok(())
}

/// The propagation of a config's mounts, by their index. Each is looked at once, however many there are and however
/// they are stacked.
struct Tree {
    /// The mount that each is made on: the deepest of those before it, and of several on one place
    /// the last. `None`: the root file system, whose mount the delegate makes private.
    holders: Vec<Option<usize>>,
    /// The mount that the host shares: each itself, or the one that it comes to be shared by.
    shared: Vec<Option<usize>>,
}

impl Tree {
    fn of(
        mounts: &[Mount<'_>],
        places: &[PathBuf],
        planned: &[PlannedMount],
        root_is_shared: bool,
    ) -> Self {
        let planned: HashSet<usize> = planned.iter().map(|planned| planned.index).collect();
        let (mut holders, mut shared) = (Vec::new(), Vec::new());
        let mut last: HashMap<&Path, usize> = HashMap::new();
        for (index, (mount, place)) in mounts.iter().zip(places).enumerate() {
            let holder = place.ancestors().find_map(|above| last.get(above).copied());
            shared.push(match effective(mount) {
                Some(said) => is_shared(said).then_some(index),
                // It is its source's peer, unless the delegate has cut all of its tree off.
                None if is_bind(mount) && !planned.contains(&index) => {
                    root_is_shared.then_some(index)
                }
                // A file system of the container's own is shared by what it is mounted on.
                None => holder.and_then(|holder| shared[holder]),
            });
            holders.push(holder);
            last.insert(place, index);
        }
        Self { holders, shared }
    }

    /// The mount that a mount would be seen on the host by.
    fn shares(&self, index: usize) -> Option<usize> {
        self.shared[self.holders[index]?]
    }
}

/// What a mount's options make of the whole of it. What is bound with its mounts keeps theirs,
/// unless the option is for all of them.
fn effective<'m>(mount: &'m Mount<'_>) -> Option<&'m str> {
    let said = said(&mount.options)?;
    let is_tree = mount.options.iter().any(|option| option == "rbind");
    (is_shared(said) || said.starts_with('r') || !is_tree).then_some(said)
}

/// Returns the option for the propagation. Of contradicting options the last one counts.
fn said<S: AsRef<str>>(options: &[S]) -> Option<&str> {
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
