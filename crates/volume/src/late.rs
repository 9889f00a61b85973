//! A volume that comes to a sandbox that runs (KEP-2857's earlier draft).

use crust_state::crust::Staging;
use crust_state::{MountInfo, TargetPath};

use super::claim::{Claim, Left};
use super::context::{Context, Locked};
use super::ensure::{Host, ensure_mounted};
use super::error::{Cause, VolumeError};
use super::stage::{try_stage, validated};
use super::users::has_users;

/// Stages a volume and mounts it in a sandbox that runs. Where that fails, what was staged before
/// is again, with the growth that waits for its mount.
pub fn stage_mounted(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    host: Host<'_>,
) -> Result<(), VolumeError> {
    let mounted = validated(context, target, info)
        .and_then(|info| context.with_claim(target, |claim| mount(context, claim, &info, host)));
    mounted.map_err(|cause| VolumeError::new(target, cause))
}

fn mount(
    context: &Context<'_>,
    claim: Claim,
    info: &MountInfo,
    host: Host<'_>,
) -> Result<Left, Cause> {
    let left = claim.left_by_stage();
    let staging = try_stage(context, &claim, info, None)?;
    let target = &claim.paths.target;
    let volume = match context.crust.volume(target) {
        Ok(Some(volume)) => volume,
        unreadable => {
            take_back(&staging, target);
            unreadable?;
            return Err(Cause::NotStaged(target.clone()));
        }
    };
    let locked = Locked {
        volume,
        _locks: claim.locks,
    };
    if let Err(cause) = ensure_mounted(context, &locked, host) {
        // Mounted all the same, and not written down: what is staged is what it has.
        if !has_users(&locked.volume) {
            take_back(&staging, target);
        }
        return Err(cause);
    }
    staging.commit()?;
    Ok(left)
}

/// The error that is told is why; this one is for the log.
fn take_back(staging: &Staging<'_>, target: &TargetPath) {
    if let Err(error) = staging.roll_back() {
        tracing::warn!(volume = %target, "what was staged before isn't again: {error}");
    }
}
