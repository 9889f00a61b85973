//! The context of every operation, and locked volumes.

use crust_blockfs::Deadline;
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Config, CrustDirectory, StateDirectory, TargetPath, Volume};

use super::error::{Cause, VolumeError};
use crust_blockfs::device::LoopDeviceCache;

/// The context of an operation: configuration, state and deadline.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub config: &'a Config,
    pub crust: &'a CrustDirectory,
    pub state: &'a StateDirectory,
    /// The deadline for locks and other waits. It is earlier than the caller's own timeout.
    pub deadline: Deadline,
    /// The cache of the machine's loop devices.
    pub loop_devices: &'a LoopDeviceCache,
}

/// A staged volume whose lock is held. No other process changes its entries, record or mounts.
#[derive(Debug)]
pub struct LockedVolume {
    pub(super) volume: Volume,
    /// The lock of the target path, or the locks of all of the volume's paths while its entries may change.
    pub(super) _locks: Vec<Lock>,
}

impl Context<'_> {
    /// Locks the volume staged at a directory, by whichever path; `None` if nothing is staged there.
    pub(super) fn lock_volume(&self, path: &TargetPath) -> Result<Option<LockedVolume>, Cause> {
        self.lock_by_target(&self.staged_target(path))
    }

    /// Locks a volume by the target path that it was staged by.
    fn lock_by_target(&self, target: &TargetPath) -> Result<Option<LockedVolume>, Cause> {
        let name = LockName::Volume(target.digest());
        let lock = self.state.lock(name, self.deadline)?;
        match self.crust.volume(target) {
            Ok(Some(volume)) => Ok(Some(LockedVolume {
                volume,
                _locks: vec![lock],
            })),
            // The unstage removed the lock's file, and taking the lock created it again.
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

    /// Removes the lock's file if the volume isn't staged, after an operation that failed. Otherwise each refused call
    /// would leave a file, and each file on `/run` takes a page of memory.
    pub(super) fn retire_unless_staged(&self, target: &TargetPath) {
        let lock = self
            .state
            .try_lock_existing(LockName::Volume(target.digest()));
        self.clean_up(target, lock, || Ok(()));
    }

    /// Runs `work` and retires the lock of a path if the path has no entry. Does nothing if another process holds the
    /// lock. Errors are logged and not returned, because the error of the operation before matters more.
    pub(super) fn clean_up(
        &self,
        path: &TargetPath,
        lock: Result<Option<Lock>, LockError>,
        work: impl FnOnce() -> Result<(), Cause>,
    ) {
        let cleaned_up = || -> Result<(), Cause> {
            let lock = match lock {
                Ok(Some(lock)) => lock,
                Ok(None) | Err(LockError::Held { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let result = match self.crust.has_entry(path) {
                Ok(true) => return Ok(()),
                Ok(false) => work(),
                // The holder of a lock may retire it even if the volume is staged: the next process creates it again.
                Err(_) => Ok(()),
            };
            self.state.retire(lock, LockName::Volume(path.digest()))?;
            result
        };
        if let Err(error) = cleaned_up() {
            tracing::warn!(volume = %path, "failed to clean up a volume that isn't staged: {error}");
        }
    }

    /// Returns the target path by which the volume at a directory was staged. The volume's lock and records are named
    /// after it.
    pub(super) fn staged_target(&self, path: &TargetPath) -> TargetPath {
        self.crust.staged_target(path)
    }
}

/// Locks a volume and reads its entry. `target` is the path that the volume was staged by.
pub fn lock(context: &Context<'_>, target: &TargetPath) -> Result<LockedVolume, VolumeError> {
    let locked = context.lock_by_target(target);
    locked
        .and_then(|locked| locked.ok_or_else(|| Cause::NotStaged(target.clone())))
        .map_err(|cause| VolumeError::new(target, cause))
}

/// Locks a volume that was read without its lock. Fails unless it is still staged with the same metadata as `found`,
/// because decisions were made from these.
pub fn lock_unchanged(context: &Context<'_>, found: &Volume) -> Result<LockedVolume, VolumeError> {
    let locked = lock(context, found.target())?;
    if locked.volume.info() != found.info() {
        return Err(VolumeError::new(found.target(), Cause::Restaged));
    }
    Ok(locked)
}

impl LockedVolume {
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}
