//! What every step works with, and a volume under its lock.

use crust_state::lock::{Lock, LockName};
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
        let Some(volume) = self.crust.volume(&target)? else {
            // It has gone with the volume before.
            self.state.retire(lock, name)?;
            return Ok(None);
        };
        Ok(Some(Locked {
            volume,
            _lock: lock,
        }))
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
