//! A mount of a volume that nobody sees yet.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crust_state::Volume;
use crust_state::ownership::Admission;
use crust_state::record::VolumeRecord;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountAttrFlags;

use super::context::Context;
use super::disk;
use super::error::Cause;
use super::plan::MountPlan;
use super::resize;
use crust_blockfs::device::Device;
use crust_blockfs::filesystem::{self, Request};
use crust_blockfs::fsgroup::{self, Order, Outcome};
use crust_blockfs::probe;
use crust_blockfs::sys;

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
    disk::check(wanted.volume.info(), &plan.device)?;
    filesystem::read_ahead(&plan.superblock.fstype, &plan.device);
    let exclusive = wanted.admission == Admission::First;
    if exclusive {
        unheld(context, plan)?;
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
        let order = Order {
            group,
            policy,
            device: Some(&plan.device),
            live: !exclusive,
        };
        let outcome = fsgroup::apply(&mount, &order, context.deadline, &mut |progress| {
            tracing::info!(volume = name, group, %progress, "fsGroup is being applied");
        })?;
        match outcome {
            Outcome::ReadOnly if has_become_read_only(plan, &mount) => {
                tracing::warn!(volume = name, group, %outcome, "fsGroup isn't applied: the file system has become read-only, as after an error; see the kernel's log (dmesg)");
            }
            Outcome::ReadOnly => {
                tracing::info!(volume = name, group, %outcome, "fsGroup isn't applied");
            }
            outcome => tracing::info!(volume = name, group, %outcome, "fsGroup was applied"),
        }
    }
    if plan.is_read_only_view() {
        // Last: a file system is grown through a mount that can be written to.
        sys::add_attributes(&mount, MountAttrFlags::MOUNT_ATTR_RDONLY).map_err(|errno| {
            let call = "mount_setattr(MOUNT_ATTR_RDONLY)".to_owned();
            Cause::Call { call, errno }
        })?;
    }
    Ok(mount)
}

/// Whether the kernel made a file system read-only that was asked for read-write and can be written to.
/// A read-only subvolume of a btrfs doesn't make the file system so.
fn has_become_read_only(plan: &MountPlan, mount: &OwnedFd) -> bool {
    let flags = rustix::fs::fstatvfs(mount).map(|stat| stat.f_flag);
    flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY))
        && !plan.options.read_only
        && !probe::is_read_only_by_nature(&plan.device, &plan.superblock.fstype)
}

/// A device stays busy a moment longer than the last process that had it mounted: for what is to be
/// written, and until a killed process has run its last instructions.
const MOMENT: Duration = Duration::from_secs(1);

/// Fails where somebody whom no record names has the device.
pub(super) fn unheld(context: &Context<'_>, plan: &MountPlan) -> Result<(), Cause> {
    let mut held = None;
    let free = context.deadline.at_most(MOMENT).poll(|| {
        held = holder(context, plan)?;
        Ok::<_, Cause>(held.is_none().then_some(()))
    })?;
    match (free, held) {
        (None, Some(cause)) => Err(cause),
        _ => Ok(()),
    }
}

/// Who has the device, or one that shows the same.
fn holder(context: &Context<'_>, plan: &MountPlan) -> Result<Option<Cause>, Cause> {
    let path = |device: &Device| device.path().display().to_string();
    let own = plan.device.device();
    if own.in_use_exclusively()? {
        let device = path(own);
        return Ok(Some(Cause::DeviceBusy { device }));
    }
    for rival in plan.device.rivals(context.neighbours)? {
        if rival.in_use_exclusively()? {
            let (device, rival) = (path(own), path(&rival));
            return Ok(Some(Cause::RivalBusy { device, rival }));
        }
    }
    Ok(None)
}
