//! Decides whether a pod may have a device, by those that have it.

use crust_blockfs::DeviceNumber;
use crust_blockfs::device::OwnerListVersion;
use crust_state::lock::LockName;
use crust_state::ownership::{Admission, Claim, admit};
use crust_state::record::VolumeRecord;
use crust_state::{Config, Process, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::plan::MountPlan;

/// A volume that a pod is to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimant<'a> {
    pub(super) target: &'a TargetPath,
    pub(super) plan: &'a MountPlan,
    pub(super) pod_uid: &'a str,
    /// The volume's own record, with its live users.
    pub(super) record: &'a VolumeRecord,
}

/// A claim that was met.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) admission: Admission,
    /// The volume wasn't on its device's list before.
    pub(super) is_new_owner: bool,
}

/// Checks that a pod may have a volume, enters the volume as one of its device's, and has the
/// caller `write` its record: in one step that no other pod's check can come between.
pub(super) fn claim(
    context: &Context<'_>,
    claimant: Claimant<'_>,
    write: impl FnOnce(Admission) -> Result<(), Cause>,
) -> Result<Claimed, Cause> {
    let Claimant { target, plan, .. } = claimant;
    let own = plan.device.number();
    let mut asks_all = claimant.record.users.is_empty();
    let (mut looked_at, mut devices) = (Vec::new(), Vec::new());
    let _lock = loop {
        // Before the lock, which is the whole node's: a loop device's file may be on a file system
        // that hangs. So again, until nobody has come in between.
        let lists = context.state.owner_list_versions()?;
        context.loop_devices.forget_outdated(&lists);
        let new = not_among(&lists, &looked_at);
        looked_at = lists;
        if std::mem::take(&mut asks_all)
            && let Err(error) = context.loop_devices.probe_all()
        {
            // Mostly rivals are asked for next, and all are asked once. Whoever has to know says so then.
            tracing::debug!("{error}");
        }
        devices.retain(|device| !new.contains(device));
        devices.extend(related(context, plan, new)?);
        let lock = context.state.lock(LockName::Owners, context.deadline)?;
        if not_among(&context.state.owner_list_versions()?, &looked_at).is_empty() {
            break lock;
        }
    };
    let listed = listed(context, target, own, devices)?;
    let admission = decide(context.config, claimant, listed.others)?;
    context.loop_devices.note_alive(own);
    context.state.add_device_volume(own, target)?;
    write(admission)?;
    Ok(Claimed {
        admission,
        is_new_owner: listed.newly,
    })
}

/// Returns what a claim would come to now. Nothing is locked, and nothing written: by the time of a claim it
/// may be another.
pub(super) fn preview(context: &Context<'_>, claimant: Claimant<'_>) -> Result<Admission, Cause> {
    let Claimant { target, plan, .. } = claimant;
    let devices = related(context, plan, context.state.devices_with_volumes()?)?;
    let listed = listed(context, target, plan.device.number(), devices)?;
    decide(context.config, claimant, listed.others)
}

/// The lists of the devices' owners.
struct Listed {
    /// The records of other volumes, with their live users.
    others: Vec<VolumeRecord>,
    /// The volume isn't on its own device's list.
    newly: bool,
}

fn listed(
    context: &Context<'_>,
    target: &TargetPath,
    own: DeviceNumber,
    devices: Vec<DeviceNumber>,
) -> Result<Listed, Cause> {
    let mut listed = Listed {
        others: Vec::new(),
        newly: true,
    };
    for device in devices {
        let volumes = context.state.volumes_on_device(device)?;
        listed.newly &= device != own || !volumes.contains(target);
        for other in volumes.iter().filter(|other| *other != target) {
            if let Some(mut record) = context.crust.record(other)? {
                record.retain_live(Process::is_alive);
                listed.others.push(record);
            }
        }
    }
    Ok(listed)
}

fn decide(
    config: &Config,
    claimant: Claimant<'_>,
    others: Vec<VolumeRecord>,
) -> Result<Admission, Cause> {
    let plan = claimant.plan;
    let claim = Claim {
        pod_uid: claimant.pod_uid,
        exclusive: plan.exclusive,
        superblock: &plan.superblock,
        only_reads: plan.read_only,
        device: plan.device.number(),
    };
    let mut records = vec![claimant.record.clone()];
    records.extend(others);
    Ok(admit(&claim, &records, config.shared)?)
}

/// The devices of those lists that weren't as they are when they were looked at.
fn not_among(lists: &[OwnerListVersion], looked_at: &[OwnerListVersion]) -> Vec<DeviceNumber> {
    let new = lists
        .iter()
        .filter(|list| looked_at.binary_search(list).is_err());
    new.map(|list| list.device).collect()
}

/// Those of the devices that are the plan's, or lead to the same data. One that is gone leads nowhere.
fn related(
    context: &Context<'_>,
    plan: &MountPlan,
    mut devices: Vec<DeviceNumber>,
) -> Result<Vec<DeviceNumber>, Cause> {
    let own = plan.device.number();
    let others = devices.len();
    devices.retain(|device| *device != own);
    let is_among = devices.len() < others;
    let mut related = plan.device.conflicting(devices, context.loop_devices)?;
    related.extend(is_among.then_some(own));
    Ok(related)
}

/// Takes a volume off its device's list when nobody ever got it mounted.
pub(super) fn remove_owner(
    context: &Context<'_>,
    target: &TargetPath,
    device: DeviceNumber,
) -> Result<(), Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    Ok(context.state.remove_device_volume(device, target)?)
}
