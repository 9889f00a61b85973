//! A volume is never seen on the host: its mount isn't shared, nor made on one that is.

use std::path::{Path, PathBuf};

use super::error::PlanError;
use super::facts::Facts;
use super::mounts::is_bind;
use super::value::PlannedMount;
use crate::matching::Node;
use crate::oci::Mount;

/// Refuses what would come into the host's mount table.
pub(super) fn check(
    facts: &Facts<'_>,
    planned: &[PlannedMount],
    node: &impl Node,
) -> Result<(), PlanError> {
    let first = &planned[0].found.volume.volume_name();
    let document = |source| PlanError::document(first, source);
    let root = facts.details.root_propagation().map_err(document)?;
    let rootfs = facts.details.root_path().map_err(document)?;
    let rootfs = facts.bundle.join(rootfs.as_deref().unwrap_or_default());
    let place = |mount: &Mount<'_>| node.within(&rootfs, Path::new(&*mount.destination));
    let tree = Tree {
        places: facts.mounts.iter().map(place).collect(),
        mounts: facts.mounts,
        planned,
        root_is_shared: root.is_some_and(|root| is_shared(&root)),
    };
    for mount in planned {
        let volume = mount.found.volume.volume_name();
        if said(&mount.options).is_some_and(is_shared) {
            return Err(PlanError::Unsupported {
                volume,
                what: "its mount is to be shared with the host (mountPropagation Bidirectional), \
                       and a deferred volume never is; hint: use HostToContainer or None",
            });
        }
        if let Some(shared) = tree.holder(mount.index).and_then(|it| tree.shared(it)) {
            return Err(PlanError::Shared {
                volume,
                destination: mount.destination.display().to_string(),
                shared: tree.mounts[shared].destination.to_string(),
            });
        }
    }
    Ok(())
}

/// A config's mounts, by their index.
struct Tree<'a> {
    mounts: &'a [Mount<'a>],
    /// Where each is made.
    places: Vec<PathBuf>,
    planned: &'a [PlannedMount],
    root_is_shared: bool,
}

impl Tree<'_> {
    /// The mount that another is made on: the deepest of those before it, and of several on one
    /// place the last. `None`: the root file system, whose mount the delegate makes private.
    fn holder(&self, index: usize) -> Option<usize> {
        let place = &self.places[index];
        let before = (0..index).filter(|other| place.starts_with(&self.places[*other]));
        before.max_by_key(|other| self.places[*other].components().count())
    }

    /// The mount that the host shares: this one, or the one that it comes to be shared by.
    fn shared(&self, index: usize) -> Option<usize> {
        let mount = &self.mounts[index];
        if let Some(said) = Self::effective(mount) {
            return is_shared(said).then_some(index);
        }
        let is_planned = self.planned.iter().any(|planned| planned.index == index);
        if is_bind(mount) && !is_planned {
            // It is its source's peer, unless the delegate has cut all of its tree off.
            return self.root_is_shared.then_some(index);
        }
        // A file system of the container's own is shared by what it is mounted on.
        self.holder(index).and_then(|holder| self.shared(holder))
    }

    /// What a mount's options make of the whole of it. What is bound with its mounts keeps theirs,
    /// unless the option is for all of them.
    fn effective<'m>(mount: &'m Mount<'_>) -> Option<&'m str> {
        let said = said(&mount.options)?;
        let is_tree = mount.options.iter().any(|option| option == "rbind");
        (is_shared(said) || said.starts_with('r') || !is_tree).then_some(said)
    }
}

/// Of options that contradict each other the last one counts.
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
