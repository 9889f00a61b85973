//! From what was staged to what will be mounted.

use crust_state::config::DeviceNode;
use crust_state::info::{Access, VolumeType};
use crust_state::record::{Superblock, VolumeRecord};
use crust_state::{
    Config, CrustDirectory, DeviceNumber, FsGroupChangePolicy, MountInfo, TargetPath, Volume,
};

use super::disk;
use super::error::{Cause, VolumeError};
use super::users::has_users;
use crate::device::Device;
use crate::options::{self, MountOptions};
use crate::selinux;

/// A volume that could be mounted: everything that was staged is understood and the device is
/// there.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub(super) device: Device,
    pub(super) options: MountOptions,
    pub(super) superblock: Superblock,
    /// The access mode forbids a second pod.
    pub(super) exclusive: bool,
    /// The group that the files get, where they get one: not on a read-only volume.
    pub(super) fs_group: Option<(u32, FsGroupChangePolicy)>,
}

impl MountPlan {
    pub(super) fn new(config: &Config, info: &MountInfo) -> Result<Self, Cause> {
        if info.volume_type == VolumeType::Network {
            return Err(Cause::Unsupported("network volumes"));
        }
        if !config.fstypes.contains(&info.fstype) {
            let (fstype, allowed) = (info.fstype.clone(), config.fstypes.join(", "));
            return Err(Cause::FileSystem { fstype, allowed });
        }
        let written: Vec<&String> = config.default_options.iter().chain(&info.options).collect();
        let mut options = options::parse(&written)?;
        options.read_only |= info.read_only;
        let device = Device::open(&info.device)?;
        let fs_group = info
            .fs_group
            .map(|group| (group, info.fs_group_change_policy));
        Ok(Self {
            superblock: superblock(&info.fstype, &options),
            exclusive: info.access() == Access::Exclusive,
            fs_group: fs_group.filter(|_| !options.read_only),
            device,
            options,
        })
    }
}

impl MountPlan {
    /// The same with this SELinux label, where the file system can be given one and the volume's
    /// options name none.
    pub(super) fn labelled(mut self, label: Option<&str>) -> Result<Self, Cause> {
        let fstype = &self.superblock.fstype;
        let Some(label) = label else {
            return Ok(self);
        };
        if selinux::takes_label(fstype) {
            self.options = self.options.with_label(label)?;
            self.superblock = superblock(fstype, &self.options);
        } else {
            tracing::warn!(%fstype, label, "this kernel's can't be given a label: mounted without it");
        }
        Ok(self)
    }

    /// The same for a user that wants no label: it takes the one that the volume has by now.
    pub(super) fn or_labelled(self, present: Option<&str>) -> Result<Self, Cause> {
        if self.superblock.label().is_some() {
            return Ok(self);
        }
        self.labelled(present)
    }

    /// The same where who has it is on record.
    pub(super) fn like_present(self, record: &VolumeRecord) -> Result<Self, Cause> {
        if record.users.is_empty() {
            return Ok(self);
        }
        self.or_labelled(record.superblock.label())
    }
}

fn superblock(fstype: &str, options: &MountOptions) -> Superblock {
    Superblock {
        fstype: fstype.to_owned(),
        options: options.superblock_options(),
        read_only: options.read_only,
    }
}

/// What whoever mounts a volume needs for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The block device.
    pub device: DeviceNumber,
    /// Nothing will be written to it.
    pub read_only: bool,
    /// The workload is to have the device as well.
    pub device_node: bool,
}

impl Need {
    pub(super) fn of(config: &Config, info: &MountInfo, plan: &MountPlan) -> Self {
        Self {
            device: plan.device.number(),
            read_only: plan.options.read_only,
            device_node: match config.device_node {
                DeviceNode::Metadata => info.device_node,
                DeviceNode::Always => true,
                DeviceNode::Never => false,
            },
        }
    }
}

/// What a staged volume takes; fails where it can't be mounted.
pub fn needs(
    config: &Config,
    crust: &CrustDirectory,
    target: &TargetPath,
) -> Result<Need, VolumeError> {
    let planned = || -> Result<_, Cause> {
        let volume = staged(crust, target)?;
        let plan = MountPlan::new(config, volume.info())?;
        match disk::check(volume.info(), &plan.device) {
            // What somebody has mounted can't be detached.
            Err(cause) if !has_users(&volume) => return Err(cause),
            _ => {}
        }
        Ok(Need::of(config, volume.info(), &plan))
    };
    planned().map_err(|cause| VolumeError::new(target, cause))
}

/// What is staged at a target path, where something has to be.
pub(super) fn staged(crust: &CrustDirectory, target: &TargetPath) -> Result<Volume, Cause> {
    let volume = crust.volume(target)?;
    volume.ok_or_else(|| Cause::NotStaged(target.clone()))
}
