//! Previews a volume's mount for a pod, by what is staged and recorded now. Nothing is locked, written, mounted or
//! opened exclusively.

use std::path::PathBuf;

use crust_blockfs::DeviceNumber;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::info::AccessMode;
use crust_state::ownership::Admission;
use crust_state::record::{User, VolumeRecord};
use crust_state::{TargetPath, Volume};
use serde::{Serialize, Serializer};

use super::acquire::plan_for_users;
use super::context::Context;
use super::ensure::MountStatus;
use super::error::{Cause, VolumeError};
use super::owners::{self, Claimant};
use super::plan::{MountPlan, VolumeProperties, check_disk, try_read_staged};
use super::users::live_record;
use crate::sandbox::Sandbox;
use crust_blockfs::device_mounts::{is_on, may_be_on};
use crust_blockfs::mountinfo::MountInfo;

/// A staged volume that can be mounted, as a pod would get it. Its keys are promised to users of
/// `crust explain --json` (docs/protocol.md, "explain").
#[derive(Debug, Serialize)]
pub struct MountPreview {
    /// The directory that it is staged in.
    pub layout: EntryLayout,
    /// The device's path as it was staged.
    pub device: PathBuf,
    /// The device, or the one that live users have.
    pub device_number: DeviceNumber,
    /// The file system's type.
    pub fstype: String,
    /// The superblock's options.
    pub options: Vec<String>,
    /// Whether the pod only reads.
    pub read_only: bool,
    /// The group that its files get; `None` if they keep theirs.
    pub fs_group: Option<u32>,
    /// When the group is applied; `None` without a group.
    pub fs_group_change_policy: Option<&'static str>,
    /// The CSI access mode's name.
    pub access_mode: Option<&'static str>,
    /// Whether the container gets the raw device as well.
    pub device_node: bool,
    /// How the pod gets access, or why it can't, which is serialised as null.
    #[serde(serialize_with = "access_or_null")]
    pub access: Result<PodAccess, VolumeError>,
    /// Live users, by its record.
    #[serde(skip)]
    pub users: Vec<User>,
}

/// The directory that a volume is staged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryLayout {
    /// The crust directory.
    Crust,
    /// Kata Containers' directory.
    Kata,
}

/// How a pod gets access to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodAccess {
    /// The device has no user: the file system is mounted.
    First,
    /// The device has users: the superblock is mounted once more.
    Joins,
    /// The pod's sandbox has it mounted.
    Mounted,
}

impl From<Admission> for PodAccess {
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::First => Self::First,
            Admission::Joins { .. } => Self::Joins,
        }
    }
}

/// The pod that a mount is previewed for.
#[derive(Debug, Clone, Copy)]
pub struct PreviewPod<'a> {
    /// Its uid, or what stands for one.
    pub uid: &'a str,
    /// Its sandbox, where that runs.
    pub sandbox: Option<&'a Sandbox>,
    /// The SELinux label that the volume's files are to have, on a host that enforces.
    pub label: Option<&'a str>,
}

/// Previews the mount of a volume for a pod. Fails as the mount would before it asks who else has the device.
pub fn preview_mount(
    context: &Context<'_>,
    target: &TargetPath,
    pod: PreviewPod<'_>,
) -> Result<MountPreview, VolumeError> {
    let looked = || -> Result<_, Cause> {
        let volume = try_read_staged(context.crust, target)?;
        let live = live_record(&volume)?;
        let (plan, before) = plan_for_users(context.config, &volume, live, pod.label)?;
        let users = before.users.clone();
        let access = access(context, &volume, &plan, before, pod);
        let need = VolumeProperties::of(context.config, volume.info(), &plan);
        let (fs_group, policy) = plan.fs_group.unzip();
        let layout = if volume.is_kata_layout() {
            EntryLayout::Kata
        } else {
            EntryLayout::Crust
        };
        Ok(MountPreview {
            layout,
            device: volume.info().device.clone(),
            device_number: need.device,
            fstype: plan.superblock.fstype,
            options: plan.superblock.options,
            read_only: need.read_only,
            fs_group,
            fs_group_change_policy: policy.map(FsGroupChangePolicy::as_str),
            access_mode: volume.info().access_mode.map(AccessMode::as_str),
            device_node: need.device_node,
            access: access.map_err(|cause| VolumeError::new(target, cause)),
            users,
        })
    };
    looked().map_err(|cause| VolumeError::new(target, cause))
}

fn access_or_null<S: Serializer>(
    access: &Result<PodAccess, VolumeError>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    access.as_ref().ok().serialize(serializer)
}

fn access(
    context: &Context<'_>,
    volume: &Volume,
    plan: &MountPlan,
    before: VolumeRecord,
    pod: PreviewPod<'_>,
) -> Result<PodAccess, Cause> {
    let (before, mounted) = match pod.sandbox {
        Some(sandbox) => {
            let status = MountStatus::read(context.config, volume, sandbox, pod.label)?;
            if status.is_complete {
                return Ok(PodAccess::Mounted);
            }
            (status.before, status.is_mounted)
        }
        None => (before, false),
    };
    if !mounted {
        check_disk(volume.info(), &plan.device)?;
    }
    let claimant = Claimant {
        target: volume.target(),
        plan,
        pod_uid: pod.uid,
        record: &before,
    };
    let admission = owners::preview(context, claimant)?;
    if mounted {
        return Ok(PodAccess::Mounted);
    }
    if admission == Admission::First && seems_held(plan)? {
        let device = plan.device.path().display().to_string();
        return Err(Cause::DeviceBusy { device });
    }
    Ok(admission.into())
}

/// Whether somebody whom no record names is seen to have the device. A create asks the kernel, by an
/// exclusive open: for a moment that would keep another create from its mount.
fn seems_held(plan: &MountPlan) -> Result<bool, Cause> {
    let number = plan.device.number();
    let mounts = MountInfo::of_thread()?.select(|line| may_be_on(line, number))?;
    Ok(mounts.iter().any(|mount| is_on(mount, number)) || plan.device.device().has_holders()?)
}
