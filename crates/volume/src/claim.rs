//! Locks all paths of a volume, whichever of them a caller names, to add or remove its entries.

use std::time::Duration;

use crust_blockfs::Deadline;
use crust_state::crust::Paths;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Digest, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::target_index;

/// A volume and the locks of all of its paths. Two calls that name one directory by different paths take turns: if
/// nothing else, they share the path with its links resolved.
///
/// All other steps work on a volume that is staged, whose entries stay, and take the lock of its target path alone.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) paths: Paths,
    /// The path that the caller gave.
    pub(super) asked: TargetPath,
    /// Held until they are dropped.
    pub(super) locks: Vec<Lock>,
}

/// The paths of a volume after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    /// Each has an entry.
    Entries,
    /// Some may have none.
    BarePaths,
}

impl Claim {
    /// Describes the paths after a stage. One by another path than the target path leaves that path without an entry.
    pub(super) fn left_by_stage(&self) -> ClaimOutcome {
        if self.paths.target == self.asked {
            ClaimOutcome::Entries
        } else {
            ClaimOutcome::BarePaths
        }
    }
}

impl Context<'_> {
    /// Does `work` with the volume at a directory claimed. If it fails, or says that it leaves paths without an entry,
    /// these are forgotten.
    pub(super) fn with_claim(
        &self,
        path: &TargetPath,
        work: impl FnOnce(Claim) -> Result<ClaimOutcome, Cause>,
    ) -> Result<(), Cause> {
        let claim = self.claim(path)?;
        let paths = claim.paths.clone();
        let done = work(claim);
        if !matches!(done, Ok(ClaimOutcome::Entries)) {
            self.forget_unstaged(&paths);
        }
        done.map(drop)
    }

    fn claim(&self, path: &TargetPath) -> Result<Claim, Cause> {
        loop {
            let paths = self.crust.paths_of(path);
            let locks = self.lock_all(&paths);
            if locks.is_ok() && self.crust.paths_of(path) == paths {
                let (asked, locks) = (path.clone(), locks?);
                return Ok(Claim {
                    paths,
                    asked,
                    locks,
                });
            }
            // Dropped here. Where they were had, another call has staged or unstaged the volume by another path before.
            let locked = locks.map(drop);
            self.forget_unstaged(&paths);
            locked?;
            if self.deadline.expired() {
                return Err(Cause::Contended);
            }
        }
    }

    /// Takes the locks in one order, so that no two calls wait for each other.
    fn lock_all(&self, paths: &Paths) -> Result<Vec<Lock>, LockError> {
        let mut digests: Vec<Digest> = paths.iter().map(TargetPath::digest).collect();
        digests.sort_unstable();
        let locks = digests.into_iter();
        let locks = locks.map(|it| self.state.lock(LockName::Volume(it), self.deadline));
        locks.collect()
    }

    /// Removes the locks and the names in the index of a volume's paths that have no entry.
    pub(super) fn forget_unstaged(&self, paths: &Paths) {
        let at_once = Deadline::after(Duration::ZERO);
        for path in paths.iter() {
            let lock = self.state.lock(LockName::Volume(path.digest()), at_once);
            self.clean_up(path, lock.map(Some), || target_index::remove(self, path));
        }
    }
}

/// Returns the paths of a volume without those that another volume has.
pub(super) fn own_paths<'p>(
    context: &Context<'_>,
    paths: &'p Paths,
) -> impl Iterator<Item = &'p TargetPath> {
    let target = &paths.target;
    paths
        .iter()
        .filter(move |path| !context.crust.is_anothers(path, target))
}
