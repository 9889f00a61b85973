//! Letting volumes go. Every step can be repeated, and none is trusted to come: what is missed
//! here is found by the next create or unstage, because a dead process is no user.

use crust_state::record::UserKind;
use crust_state::{Process, TargetPath};

use super::context::Context;
use super::error::{Cause, VolumeError};

/// Forgets a container or sandbox that has ended, and whoever else lives no more. The last user
/// takes the record and `runtime-cli` along.
///
/// The volume stays on its device's list of owners until it is unstaged: the kernel may need a
/// moment longer to let the device go.
pub fn release(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), VolumeError> {
    forget(context, target, id).map_err(|cause| VolumeError::new(target, cause))
}

fn forget(context: &Context<'_>, target: &TargetPath, id: &str) -> Result<(), Cause> {
    let Some(locked) = context.lock_volume(target)? else {
        return Ok(());
    };
    let Some(mut record) = locked.volume.record()? else {
        return Ok(());
    };
    for kind in [UserKind::Sandbox, UserKind::Container, UserKind::Pending] {
        record.remove(kind, id);
    }
    record.retain_live(Process::is_alive);
    Ok(locked.volume.write_record(&record)?)
}

/// Forgets a sandbox that has ended: its record, and its hold on volumes, those mounted later by
/// a container's create too. Containers with a pid namespace of their own live on and keep
/// theirs. Goes on after an error and gives back all of them.
#[must_use]
pub fn release_sandbox(context: &Context<'_>, id: &str) -> Vec<VolumeError> {
    let mut errors = Vec::new();
    for target in volumes(context, id, &mut errors) {
        // Read without the lock: another pod's volume may be locked for minutes.
        let record = context.crust.record(&target);
        if matches!(&record, Ok(Some(record)) if record.user(UserKind::Sandbox, id).is_some()) {
            errors.extend(release(context, &target, id).err());
        }
    }
    if let Err(error) = context.state.remove_sandbox(id) {
        errors.push(VolumeError::of_sandbox(id, error));
    }
    errors
}

/// Every volume on the node that was mounted since it was staged.
fn volumes(context: &Context<'_>, id: &str, errors: &mut Vec<VolumeError>) -> Vec<TargetPath> {
    let devices = context.state.owned_devices().unwrap_or_else(|error| {
        errors.push(VolumeError::of_sandbox(id, error));
        Vec::new()
    });
    let mut volumes = Vec::new();
    for device in devices {
        match context.state.owners_of(device) {
            Ok(list) => volumes.extend(list),
            // Whose volumes they are can't be told; the sandbox's dead process is no user anyhow.
            Err(error) => tracing::warn!("{error}"),
        }
    }
    volumes
}
