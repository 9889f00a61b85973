//! Previews a volume's mount for a pod from the present entry and records. Nothing is locked, written, mounted or
//! opened exclusively.

use std::path::PathBuf;

use crust_blockfs::DeviceNumber;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::info::AccessMode;
use crust_state::ownership::DeviceAccess;
use crust_state::record::{User, VolumeRecord};
use crust_state::{TargetPath, Volume};
use serde::{Serialize, Serializer};

use super::acquire::plan_for_users;
use super::context::Context;
use super::ensure::MountStatus;
use super::error::{Cause, VolumeError};
use super::owners::{self, NewOwner};
use super::plan::{MountPlan, VolumeProperties, try_read_staged};
use super::users::live_record;
use crate::sandbox::Sandbox;

/// A preview of a staged volume's mount. Its serialized keys are a stable interface of `crust explain --json`
/// (docs/protocol.md, "explain").
#[derive(Debug, Serialize)]
pub struct MountPreview {
    pub layout: EntryLayout,
    /// The staged path of the device, or the staged share.
    pub device: PathBuf,
    /// The device that live users have mounted, or the one that the staged path leads to. `None` for a share.
    pub device_number: Option<DeviceNumber>,
    pub fstype: String,
    pub options: Vec<String>,
    /// Whether the pod's mount is read-only.
    pub read_only: bool,
    /// The group that the files get; `None` if they keep their own.
    pub fs_group: Option<u32>,
    /// `None` if the volume has no group.
    pub fs_group_change_policy: Option<&'static str>,
    /// The name of the CSI access mode.
    pub access_mode: Option<&'static str>,
    /// Whether the container gets the raw device as well.
    pub device_node: bool,
    /// The way in which the pod gets access. The error of a pod that gets no access is serialized as null.
    #[serde(serialize_with = "access_or_null")]
    pub access: Result<VolumeAccess, VolumeError>,
    /// The live users in the volume's record.
    #[serde(skip)]
    pub users: Vec<User>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryLayout {
    /// In the crust directory.
    Crust,
    /// In Kata Containers' directory.
    Kata,
}

/// The way in which a pod gets access to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeAccess {
    /// The device has no users: the file system is mounted.
    First,
    /// The device has users: their superblock is mounted again.
    Joins,
    /// The volume is already mounted in the pod's sandbox.
    Mounted,
}

impl From<DeviceAccess> for VolumeAccess {
    fn from(access: DeviceAccess) -> Self {
        match access {
            DeviceAccess::First => Self::First,
            DeviceAccess::Joins { .. } => Self::Joins,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct PreviewPod<'a> {
    /// The pod's uid, or the identifier used for a container without a pod.
    pub uid: &'a str,
    /// The pod's sandbox if it is running.
    pub sandbox: Option<&'a Sandbox>,
    /// The SELinux label for the volume's files; `None` if the host doesn't enforce a policy.
    pub label: Option<&'a str>,
}

/// Previews the mount of a volume for a pod.
///
/// Fails if the mount would fail before other users of the device are checked. A conflict with other users is in
/// [`MountPreview::access`].
pub fn preview_mount(
    context: &Context<'_>,
    target: &TargetPath,
    pod: PreviewPod<'_>,
) -> Result<MountPreview, VolumeError> {
    let previewed = || -> Result<_, Cause> {
        let volume = try_read_staged(context.crust, target)?;
        let live = live_record(&volume)?;
        let (plan, before) = plan_for_users(context.config, &volume, live, pod.label)?;
        let users = before.users.clone();
        let access = access(context, &volume, &plan, before, pod);
        let properties = VolumeProperties::new(context.config, volume.info(), &plan);
        let (fs_group, policy) = plan.fs_group.unzip();
        let layout = if volume.is_kata_layout() {
            EntryLayout::Kata
        } else {
            EntryLayout::Crust
        };
        Ok(MountPreview {
            layout,
            device: volume.info().device.clone(),
            device_number: properties.device,
            fstype: plan.superblock.fstype,
            options: plan.superblock.options,
            read_only: properties.read_only,
            fs_group,
            fs_group_change_policy: policy.map(FsGroupChangePolicy::as_str),
            access_mode: volume.info().access_mode.map(AccessMode::as_str),
            device_node: properties.device_node,
            access: access.map_err(|cause| VolumeError::new(target, cause)),
            users,
        })
    };
    previewed().map_err(|cause| VolumeError::new(target, cause))
}

fn access_or_null<S: Serializer>(
    access: &Result<VolumeAccess, VolumeError>,
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
) -> Result<VolumeAccess, Cause> {
    let (before, mounted) = match pod.sandbox {
        Some(sandbox) => {
            let status = MountStatus::read(context.config, volume, sandbox, pod.label)?;
            if status.is_complete {
                return Ok(VolumeAccess::Mounted);
            }
            (status.before, status.is_mounted)
        }
        None => (before, false),
    };
    if !mounted {
        plan.source.check_staged(volume.info())?;
    }
    let new_owner = NewOwner {
        target: volume.target(),
        plan,
        pod_uid: pod.uid,
        record: &before,
    };
    let access = owners::preview(context, new_owner)?;
    if mounted {
        return Ok(VolumeAccess::Mounted);
    }
    if access == DeviceAccess::First && plan.source.seems_held()? {
        let device = plan.source.to_string();
        return Err(Cause::DeviceBusy { device });
    }
    Ok(access.into())
}
