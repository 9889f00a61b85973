//! Locks all paths of a volume in order to add or remove its entries, whichever of the paths the caller names.

use std::time::Duration;

use crust_blockfs::Deadline;
use crust_state::crust::VolumePaths;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Digest, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::target_index;

/// The paths of a volume with the locks of all of them. Two calls that name one directory by different paths take
/// turns, because they share at least the path with its links resolved.
///
/// All other operations need a staged volume and keep its entries, so they lock only its target path.
#[derive(Debug)]
pub(super) struct LockedPaths {
    pub(super) paths: VolumePaths,
    /// The path that the caller named.
    pub(super) requested: TargetPath,
    /// Released when they are dropped.
    pub(super) locks: Vec<Lock>,
}

/// The state of a volume's paths after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathsState {
    /// Each path has an entry.
    AllStaged,
    /// A path may have no entry.
    MayBeUnstaged,
}

impl LockedPaths {
    /// Returns the state after a stage. A stage by a path other than the target path leaves that path without an entry.
    pub(super) fn state_after_stage(&self) -> PathsState {
        if self.paths.target == self.requested {
            PathsState::AllStaged
        } else {
            PathsState::MayBeUnstaged
        }
    }
}

impl Context<'_> {
    /// Runs `work` with all paths of the volume at a directory locked. If it fails, or returns that paths may have no
    /// entry, the locks and index entries of such paths are removed.
    pub(super) fn with_locked_paths(
        &self,
        path: &TargetPath,
        work: impl FnOnce(LockedPaths) -> Result<PathsState, Cause>,
    ) -> Result<(), Cause> {
        let locked = self.lock_paths(path)?;
        let paths = locked.paths.clone();
        let state = work(locked);
        if !matches!(state, Ok(PathsState::AllStaged)) {
            self.forget_unstaged(&paths);
        }
        state.map(drop)
    }

    fn lock_paths(&self, path: &TargetPath) -> Result<LockedPaths, Cause> {
        loop {
            let paths = self.crust.volume_paths(path);
            let locks = self.lock_all(&paths);
            if locks.is_ok() && self.crust.volume_paths(path) == paths {
                let (requested, locks) = (path.clone(), locks?);
                return Ok(LockedPaths {
                    paths,
                    requested,
                    locks,
                });
            }
            // The locks are dropped, and the paths are read again. If all locks were taken, another call has staged or
            // unstaged the volume by another path meanwhile, and so has changed the volume's paths.
            let locked = locks.map(drop);
            self.forget_unstaged(&paths);
            locked?;
            if self.deadline.is_expired() {
                return Err(Cause::Contended);
            }
        }
    }

    /// Takes the locks in the order of their digests, so that no two calls wait for each other.
    fn lock_all(&self, paths: &VolumePaths) -> Result<Vec<Lock>, LockError> {
        let mut digests: Vec<Digest> = paths.iter().map(TargetPath::digest).collect();
        digests.sort_unstable();
        let locks = digests.into_iter();
        let locks = locks.map(|digest| self.state.lock(LockName::Volume(digest), self.deadline));
        locks.collect()
    }

    /// Removes the locks and index entries of a volume's paths that have no entry.
    pub(super) fn forget_unstaged(&self, paths: &VolumePaths) {
        let at_once = Deadline::after(Duration::ZERO);
        for path in paths.iter() {
            let lock = self.state.lock(LockName::Volume(path.digest()), at_once);
            self.clean_up(path, lock.map(Some), || target_index::remove(self, path));
        }
    }
}

/// Returns the paths of a volume, except for those at which another volume is staged.
pub(super) fn own_paths<'p>(
    context: &Context<'_>,
    paths: &'p VolumePaths,
) -> impl Iterator<Item = &'p TargetPath> {
    let target = &paths.target;
    paths
        .iter()
        .filter(move |path| !context.crust.belongs_to_other_volume(path, target))
}
