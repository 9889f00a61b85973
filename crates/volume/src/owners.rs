//! Makes a pod the owner of a volume. Whether the pod may become the owner depends on the records of all volumes on the
//! same device or share.

use crust_state::lock::LockName;
use crust_state::ownership::{DeviceAccess, OwnershipRequest, decide_access};
use crust_state::record::VolumeRecord;
use crust_state::{BackingKey, Config, Process, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::mount_source::OwnerLists;
use super::plan::MountPlan;

/// A pod that is to become the owner of a volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewOwner<'a> {
    pub(super) target: &'a TargetPath,
    pub(super) plan: &'a MountPlan,
    pub(super) pod_uid: &'a str,
    /// The volume's own record with its live users.
    pub(super) record: &'a VolumeRecord,
}

#[derive(Debug)]
pub(super) struct GrantedOwnership {
    pub(super) access: DeviceAccess,
    /// Whether the volume is new in the list of owners.
    pub(super) is_newly_listed: bool,
}

/// Checks that a pod may use a volume, adds the volume to the list of owners of its device or share, and calls `write`
/// to write the volume's record. All of this happens under the owners' lock, so that no other pod takes ownership in
/// between.
pub(super) fn take_ownership(
    context: &Context<'_>,
    new_owner: NewOwner<'_>,
    write: impl FnOnce(DeviceAccess) -> Result<(), Cause>,
) -> Result<GrantedOwnership, Cause> {
    let NewOwner { target, plan, .. } = new_owner;
    let own = plan.source.backing().key();
    let has_users = !new_owner.record.users.is_empty();
    let OwnerLists { keys, _lock } = plan.source.lock_owners(context, has_users)?;
    let owners = read_owners(context, target, own, keys)?;
    let access = decide(context.config, new_owner, owners.other_records)?;
    context.state.add_volume(own, target)?;
    write(access)?;
    Ok(GrantedOwnership {
        access,
        is_newly_listed: owners.is_target_missing,
    })
}

/// Returns the result that [`take_ownership`] would have now. Nothing is locked or written, so a later call may have
/// another result.
pub(super) fn preview(
    context: &Context<'_>,
    new_owner: NewOwner<'_>,
) -> Result<DeviceAccess, Cause> {
    let NewOwner { target, plan, .. } = new_owner;
    let keys = plan.source.find_owner_lists(context)?;
    let owners = read_owners(context, target, plan.source.backing().key(), keys)?;
    decide(context.config, new_owner, owners.other_records)
}

/// The owners of a volume's device or share, and of the devices with the same data.
struct Owners {
    /// The records of the other volumes, with their live users.
    other_records: Vec<VolumeRecord>,
    /// Whether the volume isn't on the list of its own device or share.
    is_target_missing: bool,
}

fn read_owners(
    context: &Context<'_>,
    target: &TargetPath,
    own: BackingKey,
    lists: Vec<BackingKey>,
) -> Result<Owners, Cause> {
    let mut owners = Owners {
        other_records: Vec::new(),
        is_target_missing: true,
    };
    for list in lists {
        let volumes = context.state.volumes_on(list)?;
        owners.is_target_missing &= list != own || !volumes.contains(target);
        for other in volumes.iter().filter(|other| *other != target) {
            if let Some(mut record) = context.crust.record(other)? {
                record.retain_live(Process::is_alive);
                owners.other_records.push(record);
            }
        }
    }
    Ok(owners)
}

fn decide(
    config: &Config,
    new_owner: NewOwner<'_>,
    other_records: Vec<VolumeRecord>,
) -> Result<DeviceAccess, Cause> {
    let plan = new_owner.plan;
    let request = OwnershipRequest {
        pod_uid: new_owner.pod_uid,
        exclusive: plan.exclusive,
        superblock: &plan.superblock,
        only_reads: plan.read_only,
        backing: &plan.source.backing(),
    };
    let mut records = vec![new_owner.record.clone()];
    records.extend(other_records);
    Ok(decide_access(&request, &records, config.shared)?)
}

/// Removes a volume from a list of owners, because its mount failed after [`take_ownership`].
pub(super) fn remove_owner(
    context: &Context<'_>,
    target: &TargetPath,
    backing: BackingKey,
) -> Result<(), Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    Ok(context.state.remove_volume(backing, target)?)
}
