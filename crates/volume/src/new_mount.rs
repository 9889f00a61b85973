//! Makes a detached mount of a volume: mounts the file system, grows it, and applies fsGroup.

use std::os::fd::OwnedFd;

use crust_state::Volume;
use crust_state::config::RefusedFsGroup;
use crust_state::ownership::DeviceAccess;
use crust_state::record::VolumeRecord;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountAttrFlags;

use super::context::Context;
use super::error::Cause;
use super::mount_holder::MountHolder;
use super::mount_source::{SourceMount, SourceMountRequest};
use super::plan::MountPlan;
use super::progress;
use super::resize;
use crate::sandbox::Sandbox;
use crust_blockfs::filesystem;
use crust_blockfs::fsgroup::{self, FsGroupOutcome, FsGroupRequest};
use crust_blockfs::probe;
use crust_blockfs::sys;

/// A mount to be made for a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewMount<'a> {
    pub(super) volume: &'a Volume,
    pub(super) plan: &'a MountPlan,
    pub(super) pod_uid: &'a str,
    /// Whether the device or share may have users already.
    pub(super) access: DeviceAccess,
    /// The sandbox that the volume is mounted in; `None` if it is mounted for one container.
    pub(super) sandbox: Option<&'a Sandbox>,
    /// The process that holds the mount beyond the end of its user; `None` if no such process is wanted.
    pub(super) holder: Option<MountHolder<'a>>,
}

/// Mounts the file system, carries out a pending resize, and applies fsGroup unless the record says that it has been
/// applied for this pod.
///
/// The returned mount is detached: if the process dies in this function, no mount is left behind.
pub(super) fn mount(
    context: &Context<'_>,
    new: NewMount<'_>,
    record: &mut VolumeRecord,
) -> Result<OwnedFd, Cause> {
    let plan = new.plan;
    plan.source.check_staged(new.volume.info())?;
    if let Some(device) = plan.source.device() {
        filesystem::read_ahead(&plan.superblock.fstype, device);
    }
    let exclusive = new.access == DeviceAccess::First;
    if exclusive {
        plan.source.check_not_held(context)?;
    }
    let SourceMount {
        root: mount,
        superblock,
    } = plan.source.mount(&SourceMountRequest {
        context,
        fstype: &plan.superblock.fstype,
        options: &plan.options,
        exclusive,
        sandbox: new.sandbox,
        holder: new.holder,
    })?;
    if let Some(number) = superblock {
        record.add_superblock(number);
    }
    resize::carry_out(new.volume, plan, &mount)?;
    let prepared = record.mark_prepared(new.pod_uid);
    if let Some((group, policy)) = plan.fs_group.filter(|_| !prepared) {
        let target = new.volume.target();
        let name = target.volume_name();
        let request = FsGroupRequest {
            group,
            policy,
            device: plan.source.device(),
            in_use: !exclusive,
        };
        progress::fs_group_started(target, group);
        let applied = fsgroup::apply(&mount, &request, context.deadline, &mut |walk| {
            progress::fs_group(target, group, walk);
        });
        match applied {
            Err(error) => {
                let Some(refused) = plan.source.refused_fs_group(group, &error) else {
                    return Err(plan.source.fs_group_cause(error));
                };
                if context.config.refused_fs_group == RefusedFsGroup::Fail {
                    return Err(refused);
                }
                tracing::warn!(volume = name, "mounted without fsGroup: {refused}");
                record.refused_fs_group = Some(group);
            }
            Ok(outcome) => report_fs_group(plan, &mount, (&name, group), outcome),
        }
    }
    if plan.is_read_only_view() {
        // Done last, because growing a file system needs a writable mount.
        sys::add_attributes(&mount, MountAttrFlags::MOUNT_ATTR_RDONLY).map_err(|errno| {
            let call = "mount_setattr(MOUNT_ATTR_RDONLY)".to_owned();
            Cause::Call { call, errno }
        })?;
    }
    Ok(mount)
}

/// Logs the outcome of an fsGroup.
fn report_fs_group(
    plan: &MountPlan,
    mount: &OwnedFd,
    (name, group): (&str, u32),
    outcome: FsGroupOutcome,
) {
    match outcome {
        FsGroupOutcome::ReadOnly if has_become_read_only(plan, mount) => {
            tracing::warn!(
                volume = name, group, %outcome,
                "fsGroup wasn't applied: the file system has become read-only, probably after an error; see the \
                 kernel's log (dmesg)"
            );
        }
        FsGroupOutcome::ReadOnly => {
            tracing::info!(volume = name, group, %outcome, "fsGroup wasn't applied");
        }
        outcome => tracing::info!(volume = name, group, %outcome, "fsGroup was applied"),
    }
}

/// Returns true if the kernel made the file system read-only although it was mounted read-write. Returns false for file
/// systems that are always read-only. A read-only subvolume doesn't make its btrfs read-only.
fn has_become_read_only(plan: &MountPlan, mount: &OwnedFd) -> bool {
    let flags = rustix::fs::fstatvfs(mount).map(|stat| stat.f_flag);
    flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY))
        && !plan.options.read_only
        && !plan
            .source
            .device()
            .is_some_and(|device| probe::is_always_read_only(device, &plan.superblock.fstype))
}
