//! What every step works with, and a volume under its lock.

use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Config, CrustDirectory, Deadline, StateDirectory, TargetPath, Volume};

use super::error::{Cause, VolumeError};
use crate::device::Neighbours;

/// What every step works with.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Where volumes are staged.
    pub crust: &'a CrustDirectory,
    /// Where users are remembered.
    pub state: &'a StateDirectory,
    /// Before whoever waits for us gives up.
    pub deadline: Deadline,
    /// What the machine's loop devices said.
    pub neighbours: &'a Neighbours,
}

/// A staged volume whose lock is held: nobody else changes its entry, record or mounts.
#[derive(Debug)]
pub struct Locked {
    pub(super) volume: Volume,
    pub(super) _lock: Lock,
}

impl Context<'_> {
    pub(super) fn lock_volume(&self, target: &TargetPath) -> Result<Option<Locked>, Cause> {
        let target = self.as_given(target);
        let name = LockName::Volume(target.digest());
        let lock = self.state.lock(name, self.deadline)?;
        match self.crust.volume(&target) {
            Ok(Some(volume)) => Ok(Some(Locked {
                volume,
                _lock: lock,
            })),
            // The lock's file has gone with the volume before.
            Ok(None) => {
                self.state.retire(lock, name)?;
                Ok(None)
            }
            Err(error) => {
                drop(lock);
                self.forget_unless_staged(&target, || Ok(()));
                Err(error.into())
            }
        }
    }

    /// Removes the lock of a volume that isn't staged, after a step that failed, and does `clean_up` before. Each
    /// refused call would otherwise leave a file, which takes a page of the memory that `/run` is.
    ///
    /// A lock that another process holds is left to that one. An error is logged: the step's own counts.
    pub(super) fn forget_unless_staged(
        &self,
        target: &TargetPath,
        clean_up: impl FnOnce() -> Result<(), Cause>,
    ) {
        let forgotten = || -> Result<(), Cause> {
            let name = LockName::Volume(target.digest());
            let lock = match self.state.glance(name) {
                Ok(Some(lock)) => lock,
                Ok(None) | Err(LockError::Held { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let cleaned = match self.crust.has_entry(target) {
                Ok(true) => return Ok(()),
                Ok(false) => clean_up(),
                // Whoever holds a lock may remove it, whatever is staged: the next one makes its own.
                Err(_) => Ok(()),
            };
            self.state.retire(lock, name)?;
            cleaned
        };
        if let Err(error) = forgotten() {
            tracing::warn!(volume = %target, "after a failed call, clean up what isn't staged: {error}");
        }
    }

    /// The target path as it was given when the volume was staged, for its resolved form: locks
    /// and records go by that.
    pub(super) fn as_given(&self, target: &TargetPath) -> TargetPath {
        match self.crust.volume(target) {
            Ok(Some(volume)) => volume.target().clone(),
            _ => target.clone(),
        }
    }
}

/// Locks a staged volume and reads what was staged.
pub fn lock(context: &Context<'_>, target: &TargetPath) -> Result<Locked, VolumeError> {
    let locked = context.lock_volume(target);
    locked
        .and_then(|locked| locked.ok_or_else(|| Cause::NotStaged(target.clone())))
        .map_err(|cause| VolumeError::new(target, cause))
}

impl Locked {
    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}
