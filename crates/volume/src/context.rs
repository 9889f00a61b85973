//! The context of every operation, and a volume under its lock.

use crust_blockfs::Deadline;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Config, CrustDirectory, StateDirectory, TargetPath, Volume};

use super::error::{Cause, VolumeError};
use crust_blockfs::device::Neighbours;

/// The context of an operation: configuration, state and deadline.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The directory of staged volumes.
    pub crust: &'a CrustDirectory,
    /// The directory of the runtime's records.
    pub state: &'a StateDirectory,
    /// Before whoever waits for us gives up.
    pub deadline: Deadline,
    /// The cache of the machine's loop devices.
    pub neighbours: &'a Neighbours,
}

/// A staged volume whose lock is held: nobody else changes its entry, record or mounts.
#[derive(Debug)]
pub struct Locked {
    pub(super) volume: Volume,
    /// One for each of the volume's paths while its entries may change.
    pub(super) _locks: Vec<Lock>,
}

impl Context<'_> {
    pub(super) fn lock_volume(&self, target: &TargetPath) -> Result<Option<Locked>, Cause> {
        self.lock_by_target(&self.as_given(target))
    }

    /// The same by the target path that the volume was staged by.
    fn lock_by_target(&self, target: &TargetPath) -> Result<Option<Locked>, Cause> {
        let name = LockName::Volume(target.digest());
        let lock = self.state.lock(name, self.deadline)?;
        match self.crust.volume(target) {
            Ok(Some(volume)) => Ok(Some(Locked {
                volume,
                _locks: vec![lock],
            })),
            // The lock's file has gone with the volume before.
            Ok(None) => {
                self.state.retire(lock, name)?;
                Ok(None)
            }
            Err(error) => {
                drop(lock);
                self.retire_unless_staged(target);
                Err(error.into())
            }
        }
    }

    /// Removes the lock of a volume that isn't staged, after a step that failed. Each refused call would otherwise
    /// leave a file, which takes a page of the memory that `/run` is.
    pub(super) fn retire_unless_staged(&self, target: &TargetPath) {
        let lock = self.state.glance(LockName::Volume(target.digest()));
        self.clean_up(target, lock, || Ok(()));
    }

    /// Retires the lock of a path that has no entry, and does `work` before. A lock that another process holds is
    /// left to that one. An error is logged: that of the step before counts.
    pub(super) fn clean_up(
        &self,
        path: &TargetPath,
        lock: Result<Option<Lock>, LockError>,
        work: impl FnOnce() -> Result<(), Cause>,
    ) {
        let cleaned = || -> Result<(), Cause> {
            let lock = match lock {
                Ok(Some(lock)) => lock,
                Ok(None) | Err(LockError::Held { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let done = match self.crust.has_entry(path) {
                Ok(true) => return Ok(()),
                Ok(false) => work(),
                // Whoever holds a lock may remove it, whatever is staged: the next one makes its own.
                Err(_) => Ok(()),
            };
            self.state.retire(lock, LockName::Volume(path.digest()))?;
            done
        };
        if let Err(error) = cleaned() {
            tracing::warn!(volume = %path, "clean up what isn't staged: {error}");
        }
    }

    /// Returns the target path that the volume at a directory was staged by. It names the volume's lock and records.
    pub(super) fn as_given(&self, path: &TargetPath) -> TargetPath {
        self.crust.target_of(path)
    }
}

/// Locks a staged volume, by the target path that it was staged by, and reads what was staged.
pub fn lock(context: &Context<'_>, target: &TargetPath) -> Result<Locked, VolumeError> {
    let locked = context.lock_by_target(target);
    locked
        .and_then(|locked| locked.ok_or_else(|| Cause::NotStaged(target.clone())))
        .map_err(|cause| VolumeError::new(target, cause))
}

/// Locks a volume that was read without its lock. Fails unless it is still staged as it was found, since what was
/// decided from `found` would be wrong of another one.
pub fn lock_found(context: &Context<'_>, found: &Volume) -> Result<Locked, VolumeError> {
    let locked = lock(context, found.target())?;
    if locked.volume.info() != found.info() {
        return Err(VolumeError::new(found.target(), Cause::StagedAnew));
    }
    Ok(locked)
}

impl Locked {
    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}
