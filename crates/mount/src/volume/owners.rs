//! Who else has the device.

use crust_state::DeviceNumber;
use crust_state::lock::LockName;
use crust_state::ownership::{Admission, Claim, Owner, admit};
use crust_state::record::VolumeRecord;

use super::error::Cause;
use super::plan::MountPlan;
use super::{Context, Locked};
use crate::device::{Aliases, Device};

/// Checks that a pod may have a volume, and enters the volume as one of its device's, in one step
/// that no other pod's check can come between. `record` is the volume's own.
pub(super) fn claim(
    context: &Context<'_>,
    locked: &Locked,
    plan: &MountPlan,
    pod_uid: &str,
    record: &VolumeRecord,
    write: impl FnOnce() -> Result<(), Cause>,
) -> Result<Admission, Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    let target = locked.volume.target();
    let mut owners = vec![Owner {
        target: target.clone(),
        record: record.clone(),
    }];
    let aliases = plan.device.aliases()?;
    for (device, volumes) in context.state.owners()? {
        if !leads_to(device, plan.device.number(), &aliases) {
            continue;
        }
        for other in volumes.into_iter().filter(|other| other != target) {
            let Some(volume) = context.crust.volume(&other)? else {
                continue;
            };
            let Some(mut record) = volume.record()? else {
                continue;
            };
            record.forget_the_dead(crust_state::Process::is_alive);
            owners.push(Owner {
                target: other,
                record,
            });
        }
    }
    let claim = Claim {
        pod_uid,
        exclusive: record.exclusive,
        superblock: &plan.superblock,
        device: plan.device.number(),
    };
    let admission = admit(&claim, &owners, context.config.shared)?;
    context.state.add_owner(plan.device.number(), target)?;
    write()?;
    Ok(admission)
}

/// Whether two devices are one, or lead to the same data. A device that is gone leads nowhere.
fn leads_to(other: DeviceNumber, device: DeviceNumber, aliases: &Aliases) -> bool {
    other == device || Device::aliases_of(other).is_ok_and(|other| other.conflicts_with(aliases))
}

/// Takes a volume off its device's list when nobody ever got it mounted.
pub(super) fn disown(
    context: &Context<'_>,
    locked: &Locked,
    device: DeviceNumber,
) -> Result<(), Cause> {
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    Ok(context.state.remove_owner(device, locked.volume.target())?)
}
