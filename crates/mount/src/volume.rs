//! A staged volume's life: staged, mounted in a sandbox, handed to containers, released, unstaged.
//!
//! The rooms beside this one know how to mount; here it is decided whether, and written down who
//! has what. Locks are taken in the order bundle, volume, device, owners.

mod acquire;
mod ensure;
mod error;
mod health;
mod instance;
mod mounted;
mod own;
mod owners;
mod plan;
mod release;
mod resize;
mod stage;
mod stats;
mod users;

use crust_state::lock::{Lock, LockName};
use crust_state::{Config, CrustDirectory, Deadline, StateDirectory, TargetPath, Volume};

pub use ensure::{Host, ensure, view};
use error::Cause;
pub use error::{Code, VolumeError};
pub use health::Condition;
pub use own::{instantiate, mount_reserved, reserve};
pub use plan::{Need, needs};
pub use release::{SweepError, release, release_sandbox, sweep};
pub use resize::resize;
pub use stage::{stage, unstage};
pub use stats::{Stats, stats};
pub use users::{NewContainer, begin, has_device, publish, take_back, withdraw};

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
}

/// A staged volume whose lock is held: nobody else changes its entry, record or mounts.
#[derive(Debug)]
pub struct Locked {
    volume: Volume,
    _lock: Lock,
}

impl Context<'_> {
    fn lock_volume(&self, target: &TargetPath) -> Result<Option<Locked>, Cause> {
        let target = self.as_given(target);
        let lock = self
            .state
            .lock(LockName::Volume(target.digest()), self.deadline)?;
        let volume = self.crust.volume(&target)?;
        Ok(volume.map(|volume| Locked {
            volume,
            _lock: lock,
        }))
    }

    /// The target path as it was given when the volume was staged, for its resolved form: locks
    /// and records go by that.
    fn as_given(&self, target: &TargetPath) -> TargetPath {
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
