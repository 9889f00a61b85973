//! Makes a sandbox or container a user of a volume. The new user is checked against the present users, recorded before
//! anything is mounted, and removed from the record if the mount fails.

use crust_state::ownership::DeviceAccess;
use crust_state::record::{User, Version, VolumeRecord};
use crust_state::{Config, Volume};

use super::context::{Context, LockedVolume};
use super::error::Cause;
use super::owners::{self, NewOwner};
use super::plan::MountPlan;

/// Plans a mount of a volume and returns the record that the new user is added to: `live` if the volume has live users,
/// otherwise an empty record.
pub(super) fn plan_for_users(
    config: &Config,
    volume: &Volume,
    live: Option<VolumeRecord>,
    label: Option<&str>,
) -> Result<(MountPlan, VolumeRecord), Cause> {
    let in_use = live.as_ref().map(|record| &record.backing);
    let plan = MountPlan::new(config, volume.info(), in_use)?.with_label(label)?;
    if let Some(record) = live {
        return Ok((plan.adapted_to(&record)?, record));
    }
    let record = empty_record(&plan);
    Ok((plan, record))
}

#[derive(Debug)]
pub(super) struct NewUser<'a> {
    pub(super) user: User,
    /// The volume's record with its live users, without `user`.
    pub(super) before: &'a VolumeRecord,
}

/// Adds a user to the volume's record, runs `work`, and writes the record as `work` changed it. If `work` fails, the
/// record is restored.
pub(super) fn acquire<T>(
    context: &Context<'_>,
    locked: &LockedVolume,
    plan: MountPlan,
    new: NewUser<'_>,
    work: impl FnOnce(&MountPlan, DeviceAccess, &mut VolumeRecord) -> Result<T, Cause>,
) -> Result<T, Cause> {
    let volume = &locked.volume;
    let _lock = plan.source.lock(context)?;
    let NewUser { user, before } = new;
    let (target, pod_uid) = (volume.target(), user.pod_uid.clone());
    let mut record = before.clone();
    record.add(user);
    // Only `reconcile` reads this, after the target directory is gone: a failure doesn't affect the mount.
    if let Err(error) = volume.record_presence() {
        tracing::debug!("{error}");
    }
    let new_owner = NewOwner {
        target,
        plan: &plan,
        pod_uid: &pod_uid,
        record: before,
    };
    let granted = owners::take_ownership(context, new_owner, |access| {
        record.superblock.read_only |= access.is_read_only();
        Ok(volume.write_record(&record)?)
    })?;
    let access = granted.access;
    let plan = plan.with_mounted_read_only(access.is_read_only());
    match work(&plan, access, &mut record) {
        Ok(result) => {
            // The volume is mounted now: if this write fails, the record written before still names the user.
            volume.write_record(&record)?;
            Ok(result)
        }
        Err(cause) => {
            // An error of restoring the record is ignored, because the cause matters more.
            let restored = volume.write_record(before);
            if granted.is_newly_listed && restored.is_ok() {
                let _ = owners::remove_owner(context, target, plan.source.backing().key());
            }
            Err(cause)
        }
    }
}

/// Returns the record of a volume without users.
pub(super) fn empty_record(plan: &MountPlan) -> VolumeRecord {
    VolumeRecord {
        version: Version,
        backing: plan.source.backing(),
        superblocks: Vec::new(),
        refused_fs_group: None,
        superblock: plan.superblock.clone(),
        exclusive: plan.exclusive,
        prepared_for: Vec::new(),
        users: Vec::new(),
    }
}
