//! Becoming a user of a volume: checked against those that have it, written down before anything
//! is mounted, and taken back when that fails.

use crust_state::lock::LockName;
use crust_state::ownership::Admission;
use crust_state::record::{User, Version, VolumeRecord};
use crust_state::{Process, Volume};

use super::context::{Context, Locked};
use super::error::Cause;
use super::owners;
use super::plan::MountPlan;

/// The record of a volume without its dead users; a new one where nobody has it. Those who have it
/// must have it from the device that is staged.
pub(super) fn live_record(volume: &Volume, plan: &MountPlan) -> Result<VolumeRecord, Cause> {
    let mut record = match volume.record()? {
        Some(record) => record,
        None => unused(plan),
    };
    record.forget_the_dead(Process::is_alive);
    let record = anew_if_unused(record, plan);
    let now = plan.device.number();
    match record.users.first() {
        Some(user) if record.device != now => Err(Cause::Moved {
            path: plan.device.path().display().to_string(),
            now,
            then: record.device,
            user: user.to_string(),
        }),
        _ => Ok(record),
    }
}

/// What an ended user left counts for nobody.
pub(super) fn anew_if_unused(record: VolumeRecord, plan: &MountPlan) -> VolumeRecord {
    if record.users.is_empty() {
        unused(plan)
    } else {
        record
    }
}

/// Enters `user` into the volume's record, `before` being its live users, and does `work`; where
/// that fails, neither. What the work makes of the record is written too.
pub(super) fn acquire<T>(
    context: &Context<'_>,
    locked: &Locked,
    plan: &MountPlan,
    before: &VolumeRecord,
    user: User,
    work: impl FnOnce(Admission, &mut VolumeRecord) -> Result<T, Cause>,
) -> Result<T, Cause> {
    let volume = &locked.volume;
    let device = plan.device.number();
    // Held while the device is read, which may take long: it is this device's lock alone.
    let _device = context
        .state
        .lock(LockName::Device(device), context.deadline)?;
    let (target, pod_uid) = (volume.target(), user.pod_uid.clone());
    let mut record = before.clone();
    record.add(user);
    // It is remembered for when it is gone, which hinders nobody now.
    if let Err(error) = volume.remember_standing() {
        tracing::debug!("{error}");
    }
    let claimed = owners::claim(context, target, plan, &pod_uid, before, || {
        Ok(volume.write_record(&record)?)
    })?;
    match work(claimed.admission, &mut record) {
        Ok(done) => {
            // It is mounted: that this can't be written takes nobody off the record.
            volume.write_record(&record)?;
            Ok(done)
        }
        Err(cause) => {
            // What the failed try wrote goes; its cause is what counts.
            let undone = volume.write_record(before);
            if claimed.newly && undone.is_ok() {
                let _ = owners::disown(context, target, device);
            }
            Err(cause)
        }
    }
}

fn unused(plan: &MountPlan) -> VolumeRecord {
    VolumeRecord {
        version: Version,
        device: plan.device.number(),
        superblock: plan.superblock.clone(),
        exclusive: plan.exclusive,
        prepared_for: Vec::new(),
        users: Vec::new(),
    }
}
