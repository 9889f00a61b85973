//! Makes a pod the owner of a volume. Whether the pod may become the owner depends on the records of all volumes on the
//! device.

use crust_blockfs::DeviceNumber;
use crust_blockfs::device::OwnerListVersion;
use crust_state::lock::LockName;
use crust_state::ownership::{DeviceAccess, OwnershipRequest, decide_access};
use crust_state::record::VolumeRecord;
use crust_state::{Config, Process, TargetPath};

use super::context::Context;
use super::error::Cause;
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
    /// Whether the volume is new in its device's list of owners.
    pub(super) is_newly_listed: bool,
}

/// Checks that a pod may use a volume, adds the volume to its device's list of owners, and calls `write` to write the
/// volume's record. All of this happens under the owners' lock, so that no other pod takes ownership in between.
pub(super) fn take_ownership(
    context: &Context<'_>,
    new_owner: NewOwner<'_>,
    write: impl FnOnce(DeviceAccess) -> Result<(), Cause>,
) -> Result<GrantedOwnership, Cause> {
    let NewOwner { target, plan, .. } = new_owner;
    let own_device = plan.device.number();
    let mut probe_all = new_owner.record.users.is_empty();
    let (mut known_lists, mut devices) = (Vec::new(), Vec::new());
    let _lock = loop {
        // Devices are probed before the lock is taken, because the whole node shares the lock and a loop device's file
        // may be on a file system that hangs. If a list of owners has changed between the probes and the lock, the loop
        // runs again.
        let lists = context.state.owner_list_versions()?;
        context.loop_devices.forget_outdated(&lists);
        let changed = changed_lists(&lists, &known_lists);
        known_lists = lists;
        if std::mem::take(&mut probe_all)
            && let Err(error) = context.loop_devices.probe_all()
        {
            // This only fills the cache, because the mount of the first user needs the results for all devices anyway.
            // If a result that is needed is missing, the call that needs it fails.
            tracing::debug!("{error}");
        }
        devices.retain(|device| !changed.contains(device));
        devices.extend(related_devices(context, plan, changed)?);
        let lock = context.state.lock(LockName::Owners, context.deadline)?;
        if changed_lists(&context.state.owner_list_versions()?, &known_lists).is_empty() {
            break lock;
        }
    };
    let owners = read_owners(context, target, own_device, devices)?;
    let access = decide(context.config, new_owner, owners.other_records)?;
    context.loop_devices.note_alive(own_device);
    context.state.add_device_volume(own_device, target)?;
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
    let devices = related_devices(context, plan, context.state.devices_with_volumes()?)?;
    let owners = read_owners(context, target, plan.device.number(), devices)?;
    decide(context.config, new_owner, owners.other_records)
}

/// The owners of a volume's device and of the devices with the same data.
struct DeviceOwners {
    /// The records of the other volumes, with their live users.
    other_records: Vec<VolumeRecord>,
    /// Whether the volume isn't on its own device's list.
    is_target_missing: bool,
}

fn read_owners(
    context: &Context<'_>,
    target: &TargetPath,
    own_device: DeviceNumber,
    devices: Vec<DeviceNumber>,
) -> Result<DeviceOwners, Cause> {
    let mut owners = DeviceOwners {
        other_records: Vec::new(),
        is_target_missing: true,
    };
    for device in devices {
        let volumes = context.state.volumes_on_device(device)?;
        owners.is_target_missing &= device != own_device || !volumes.contains(target);
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
        device: plan.device.number(),
    };
    let mut records = vec![new_owner.record.clone()];
    records.extend(other_records);
    Ok(decide_access(&request, &records, config.shared)?)
}

/// Returns the devices whose lists of owners aren't among the known ones.
fn changed_lists(lists: &[OwnerListVersion], known: &[OwnerListVersion]) -> Vec<DeviceNumber> {
    let changed = lists
        .iter()
        .filter(|list| known.binary_search(list).is_err());
    changed.map(|list| list.device).collect()
}

/// Returns which of the devices are the plan's device or have the same data as that device. A device that is gone has
/// no data.
fn related_devices(
    context: &Context<'_>,
    plan: &MountPlan,
    mut devices: Vec<DeviceNumber>,
) -> Result<Vec<DeviceNumber>, Cause> {
    let own = plan.device.number();
    let count = devices.len();
    devices.retain(|device| *device != own);
    let has_own = devices.len() < count;
    let mut related = plan.device.conflicting(devices, context.loop_devices)?;
    related.extend(has_own.then_some(own));
    Ok(related)
}

/// Removes a volume from its device's list of owners, because its mount failed after [`take_ownership`].
pub(super) fn remove_owner(
    context: &Context<'_>,
    target: &TargetPath,
    device: DeviceNumber,
) -> Result<(), Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    Ok(context.state.remove_device_volume(device, target)?)
}
