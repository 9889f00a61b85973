//! Plans the mount of a staged volume: its device, which has to be the disk that was staged, and its options.

use crust_blockfs::DeviceNumber;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::config::DeviceNode;
use crust_state::info::{AccessMode, PodAccess, VolumeType};
use crust_state::record::{Superblock, VolumeRecord};
use crust_state::{Config, CrustDirectory, MountInfo, TargetPath, Volume};

use rustix::mount::MountAttrFlags;

use super::error::{Cause, VolumeError};
use super::users::live_record;
use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::fstypes;
use crust_blockfs::options::{self, MountOptions};

/// A volume that could be mounted: everything that was staged is understood and the device is
/// there.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub(super) device: DeviceFacts,
    pub(super) options: MountOptions,
    pub(super) superblock: Superblock,
    /// The access mode forbids a second pod.
    pub(super) exclusive: bool,
    /// The pod's own mount is read-only, whatever the superblock is.
    pub(super) read_only: bool,
    /// The group that the files get, where they get one: not of a pod that only reads.
    pub(super) fs_group: Option<(u32, FsGroupChangePolicy)>,
}

impl MountPlan {
    /// Plans a mount of a staged volume. A volume with live users is on the device `in_use`: the path
    /// that was staged is only for a first mount, and may lead elsewhere by now (udev removes and
    /// repoints the links in `/dev/disk`).
    pub(super) fn new(
        config: &Config,
        info: &MountInfo,
        in_use: Option<DeviceNumber>,
    ) -> Result<Self, Cause> {
        check(config, info)?;
        let mut options = mount_options(config, info)?;
        let device = match in_use {
            Some(number) => Device::find_by_number(number)?.ok_or(Cause::DeviceGone(number))?,
            None => Device::open(&info.device)?,
        };
        let device = DeviceFacts::from(device);
        // Such a device has no other superblock. A pod that means to write is refused by the kernel.
        options.read_only |= info.read_only && in_use.is_none() && device.is_read_only()?;
        let read_only = info.read_only || options.read_only;
        let fs_group = info
            .fs_group
            .map(|group| (group, info.fs_group_change_policy));
        Ok(Self {
            superblock: superblock(&info.fstype, &options),
            exclusive: info.access() == PodAccess::Exclusive,
            fs_group: fs_group.filter(|_| !read_only),
            read_only,
            device,
            options,
        })
    }

    /// Whether the pod has a read-only mount of a superblock that others may write through.
    pub(super) fn is_read_only_view(&self) -> bool {
        self.read_only && !self.superblock.read_only
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
        if fstypes::supports_selinux_label(fstype) {
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

    /// The same for a pod that only reads: it takes a read-only superblock that is there by now.
    pub(super) fn or_read_only(mut self, present: bool) -> Self {
        if self.read_only && present {
            self.options.read_only = true;
            self.superblock.read_only = true;
        }
        self
    }

    /// The same where live users are on record.
    pub(super) fn like_present(self, record: &VolumeRecord) -> Result<Self, Cause> {
        let present = &record.superblock;
        Ok(self
            .or_labelled(present.label())?
            .or_read_only(present.read_only))
    }
}

/// Fails where it is known without the device that a volume can't be mounted.
pub(super) fn check(config: &Config, info: &MountInfo) -> Result<(), Cause> {
    if info.volume_type == VolumeType::Network {
        return Err(Cause::Unsupported("network volumes"));
    }
    if !config.fstypes.contains(&info.fstype) {
        let (fstype, allowed) = (info.fstype.clone(), config.fstypes.join(", "));
        return Err(Cause::FileSystem { fstype, allowed });
    }
    Ok(())
}

/// The options that a volume is mounted with. The superblock is read-only by an option or the access
/// mode; the pod's own `readonly` isn't among them.
pub(super) fn mount_options(config: &Config, info: &MountInfo) -> Result<MountOptions, Cause> {
    let written: Vec<&String> = config.default_options.iter().chain(&info.options).collect();
    let mut options = options::parse(&written)?;
    options.read_only |= info.access_mode.is_some_and(AccessMode::only_reads);
    Ok(options)
}

fn superblock(fstype: &str, options: &MountOptions) -> Superblock {
    Superblock {
        fstype: fstype.to_owned(),
        options: options.superblock_options(),
        read_only: options.read_only,
    }
}

/// The properties of a volume that a container's config depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeProperties {
    /// The block device.
    pub device: DeviceNumber,
    /// The pod only reads.
    pub read_only: bool,
    /// The workload is to have the device as well.
    pub device_node: bool,
    /// Attributes that the volume's mount has, `nosuid` and its like.
    pub attributes: MountAttrFlags,
}

impl VolumeProperties {
    pub(super) fn of(config: &Config, info: &MountInfo, plan: &MountPlan) -> Self {
        Self {
            device: plan.device.number(),
            read_only: plan.read_only,
            attributes: plan.options.attributes,
            device_node: match config.device_node {
                DeviceNode::Metadata => info.device_node,
                DeviceNode::Always => true,
                DeviceNode::Never => false,
            },
        }
    }
}

/// Returns what a staged volume takes; fails where it can't be mounted. Who uses it and its device are read now.
pub fn volume_properties(
    config: &Config,
    volume: &Volume,
) -> Result<VolumeProperties, VolumeError> {
    let planned = || -> Result<_, Cause> {
        let live = live_record(volume)?;
        let in_use = live.map(|record| record.device);
        let plan = MountPlan::new(config, volume.info(), in_use)?;
        if in_use.is_none() {
            check_disk(volume.info(), &plan.device)?;
        }
        Ok(VolumeProperties::of(config, volume.info(), &plan))
    };
    planned().map_err(|cause| VolumeError::new(volume.target(), cause))
}

/// Reads what is staged at a target path; fails where nothing is.
pub fn read_staged(crust: &CrustDirectory, target: &TargetPath) -> Result<Volume, VolumeError> {
    let volume = try_read_staged(crust, target);
    volume.map_err(|cause| VolumeError::new(target, cause))
}

/// The same, for an error that names the volume later.
pub(super) fn try_read_staged(
    crust: &CrustDirectory,
    target: &TargetPath,
) -> Result<Volume, Cause> {
    let volume = crust.volume(target)?;
    volume.ok_or_else(|| Cause::NotStaged(target.clone()))
}

/// Fails if a device isn't the disk that was staged any more.
///
/// Nothing holds a device between its stage and its first mount. If it is detached meanwhile (`losetup -D`, a disk that
/// is taken away), its name and its number are soon another's, and the pod would get the data of another volume.
/// Nothing is compared if the entry has no disk sequence number (of an earlier version, or of another writer), or the
/// kernel doesn't tell one.
pub(super) fn check_disk(info: &MountInfo, device: &DeviceFacts) -> Result<(), Cause> {
    let Some(staged) = info.disk_seq else {
        return by_path(info, device);
    };
    match device.disk_seq()? {
        Some(now) if now != staged => Err(Cause::OtherDisk {
            device: device.path().display().to_string(),
            staged,
            now,
        }),
        _ => Ok(()),
    }
}

/// Compares a device that was found by its number on a record with the path that was staged: the number may be another
/// disk's by now if nobody has the device mounted.
fn by_path(info: &MountInfo, device: &DeviceFacts) -> Result<(), Cause> {
    if device.path() == info.device {
        return Ok(());
    }
    let (now, then) = (Device::open(&info.device)?.number(), device.number());
    if now == then {
        return Ok(());
    }
    Err(Cause::DevicePathMoved {
        path: info.device.display().to_string(),
        now,
        mounted: then,
    })
}
