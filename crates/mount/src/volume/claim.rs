//! The right to add and remove the entries of a volume, by whichever path its directory is named.

use std::time::Duration;

use crust_state::crust::Paths;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Deadline, Digest, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::index;

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

impl Context<'_> {
    /// Does `work` with the volume at a directory claimed. Afterwards, also if it failed, it removes the lock of each
    /// path that has no entry, and the path from the index of target paths.
    pub(super) fn with_claim(
        &self,
        path: &TargetPath,
        work: impl FnOnce(Claim) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let claim = self.claim(path)?;
        let paths = claim.paths.clone();
        let done = work(claim);
        self.forget_unstaged(&paths);
        done
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
            self.clean_up(path, lock.map(Some), || index::remove(self, path));
        }
    }
}
