//! A mount of a volume that nobody sees yet.

use std::os::fd::OwnedFd;

use crust_state::Volume;
use crust_state::ownership::Admission;
use crust_state::record::VolumeRecord;

use super::Context;
use super::error::Cause;
use super::plan::MountPlan;
use super::resize;
use crate::filesystem::{self, Request};
use crate::fsgroup;

/// What an instance is made of, and for whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) volume: &'a Volume,
    pub(super) plan: &'a MountPlan,
    pub(super) pod_uid: &'a str,
    /// Whether somebody may have the device already.
    pub(super) admission: Admission,
}

/// Instantiates the file system, grows it where that was asked for before, and applies fsGroup,
/// where it wasn't for this pod before. The record then says that it was.
///
/// Attached means configured: a crash in here leaves nothing.
pub(super) fn make(
    context: &Context<'_>,
    wanted: Wanted<'_>,
    record: &mut VolumeRecord,
) -> Result<OwnedFd, Cause> {
    let plan = wanted.plan;
    let exclusive = wanted.admission == Admission::First;
    if exclusive {
        unheld(plan)?;
    }
    let mount = filesystem::instantiate(&Request {
        device: &plan.device,
        fstype: &plan.superblock.fstype,
        options: &plan.options,
        exclusive,
    })?;
    resize::carry_out(wanted.volume, plan, &mount)?;
    let prepared = record.mark_prepared(wanted.pod_uid);
    if let Some((group, policy)) = plan.fs_group.filter(|_| !prepared) {
        let name = wanted.volume.target().volume_name();
        let outcome = fsgroup::apply(&mount, group, policy, context.deadline, &mut |progress| {
            tracing::info!(volume = name, group, %progress, "fsGroup is being applied");
        })?;
        tracing::info!(volume = name, group, %outcome, "fsGroup was applied");
    }
    Ok(mount)
}

/// Fails where somebody whom no record names has the device.
pub(super) fn unheld(plan: &MountPlan) -> Result<(), Cause> {
    if plan.device.in_use_exclusively()? {
        let device = plan.device.path().display().to_string();
        return Err(Cause::DeviceBusy { device });
    }
    for rival in plan.device.rivals()? {
        if rival.in_use_exclusively()? {
            return Err(Cause::RivalBusy {
                device: plan.device.path().display().to_string(),
                rival: rival.path().display().to_string(),
            });
        }
    }
    Ok(())
}
