//! Makes a sandbox or container a user of a volume: checked against the present users, recorded before anything is
//! mounted, and removed from the record if the mount fails.

use crust_state::lock::LockName;
use crust_state::ownership::Admission;
use crust_state::record::{User, Version, VolumeRecord};
use crust_state::{Config, Volume};

use super::context::{Context, Locked};
use super::error::Cause;
use super::owners::{self, Claimant};
use super::plan::MountPlan;

/// Plans a mount of a volume, beside the live users on its record. Without any the record is a new
/// one.
pub(super) fn planned(
    config: &Config,
    volume: &Volume,
    live: Option<VolumeRecord>,
    label: Option<&str>,
) -> Result<(MountPlan, VolumeRecord), Cause> {
    let in_use = live.as_ref().map(|record| record.device);
    let plan = MountPlan::new(config, volume.info(), in_use)?.labelled(label)?;
    if let Some(record) = live {
        return Ok((plan.like_present(&record)?, record));
    }
    let record = unused(&plan);
    Ok((plan, record))
}

/// A new user of a volume, and the volume's record before it, with its live users.
#[derive(Debug)]
pub(super) struct NewUser<'a> {
    pub(super) user: User,
    pub(super) before: &'a VolumeRecord,
}

/// Enters a user into the volume's record and does `work`; where that fails, neither. What the work makes of the
/// record is written too.
pub(super) fn acquire<T>(
    context: &Context<'_>,
    locked: &Locked,
    plan: MountPlan,
    new: NewUser<'_>,
    work: impl FnOnce(&MountPlan, Admission, &mut VolumeRecord) -> Result<T, Cause>,
) -> Result<T, Cause> {
    let volume = &locked.volume;
    let device = plan.device.number();
    // Held while the device is read, which may take long: it is this device's lock alone.
    let _device = context
        .state
        .lock(LockName::Device(device), context.deadline)?;
    let NewUser { user, before } = new;
    // From here on the device can't become another disk, so that what is found out about it holds until the superblock
    // has it. What can't be opened can't be mounted either, and the mount says why.
    let _ = plan.device.opened();
    let (target, pod_uid) = (volume.target(), user.pod_uid.clone());
    let mut record = before.clone();
    record.add(user);
    // It is remembered for when it is gone, which hinders nobody now.
    if let Err(error) = volume.record_presence() {
        tracing::debug!("{error}");
    }
    let claimant = Claimant {
        target,
        plan: &plan,
        pod_uid: &pod_uid,
        record: before,
    };
    let claimed = owners::claim(context, claimant, |admission| {
        record.superblock.read_only |= admission.is_read_only();
        Ok(volume.write_record(&record)?)
    })?;
    let admission = claimed.admission;
    let plan = plan.or_read_only(admission.is_read_only());
    match work(&plan, admission, &mut record) {
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

pub(super) fn unused(plan: &MountPlan) -> VolumeRecord {
    VolumeRecord {
        version: Version,
        device: plan.device.number(),
        superblock: plan.superblock.clone(),
        exclusive: plan.exclusive,
        prepared_for: Vec::new(),
        users: Vec::new(),
    }
}
