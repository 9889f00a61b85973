//! Plans the mount of a staged volume: its device, which must be the disk that was staged, and its options.

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

/// A plan to mount a volume. Its metadata is valid and its device exists.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub(super) device: DeviceFacts,
    pub(super) options: MountOptions,
    pub(super) superblock: Superblock,
    /// Whether the access mode forbids a second pod.
    pub(super) exclusive: bool,
    /// Whether the pod's own mount is read-only. The superblock may be writable nevertheless.
    pub(super) read_only: bool,
    /// The group that the files get; `None` for a read-only mount.
    pub(super) fs_group: Option<(u32, FsGroupChangePolicy)>,
}

impl MountPlan {
    /// Plans a mount of a staged volume.
    ///
    /// `in_use` is the device that live users of the volume have mounted. The staged path is only used without such
    /// users: it may lead to another device now, because udev removes and changes the links in `/dev/disk`.
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
        // A read-only device can only have a read-only superblock. For a pod that wants to write, the mount fails.
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

    /// Returns true if the pod gets a read-only mount of a writable superblock.
    pub(super) fn is_read_only_view(&self) -> bool {
        self.read_only && !self.superblock.read_only
    }
}

impl MountPlan {
    /// Sets the SELinux label, if the file system supports one and the volume's options don't set one.
    pub(super) fn with_label(mut self, label: Option<&str>) -> Result<Self, Cause> {
        let fstype = &self.superblock.fstype;
        let Some(label) = label else {
            return Ok(self);
        };
        if fstypes::supports_selinux_label(fstype) {
            self.options = self.options.with_label(label)?;
            self.superblock = superblock(fstype, &self.options);
        } else {
            tracing::warn!(
                %fstype, label,
                "this kernel doesn't support SELinux labels as a mount option of the file system: mounted without a \
                 label"
            );
        }
        Ok(self)
    }

    /// Plans with the label of the mounted superblock, if the user requests no label.
    pub(super) fn with_mounted_label(self, present: Option<&str>) -> Result<Self, Cause> {
        if self.superblock.label().is_some() {
            return Ok(self);
        }
        self.with_label(present)
    }

    /// Plans with a read-only superblock, if the mounted one is read-only and the pod only reads.
    pub(super) fn with_mounted_read_only(mut self, present: bool) -> Self {
        if self.read_only && present {
            self.options.read_only = true;
            self.superblock.read_only = true;
        }
        self
    }

    /// Adapts the plan to the label and the read-only state of the superblock that live users have mounted, as far as
    /// the plan allows.
    pub(super) fn adapted_to(self, record: &VolumeRecord) -> Result<Self, Cause> {
        let present = &record.superblock;
        Ok(self
            .with_mounted_label(present.label())?
            .with_mounted_read_only(present.read_only))
    }
}

/// Checks the volume type and the file system type, which needs no device.
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

/// Returns the options that a volume is mounted with.
///
/// An option or the access mode makes the superblock read-only. The pod's own `readonly` doesn't: it only affects the
/// pod's mount.
pub(super) fn mount_options(config: &Config, info: &MountInfo) -> Result<MountOptions, Cause> {
    let texts: Vec<&String> = config.default_options.iter().chain(&info.options).collect();
    let mut options = options::parse(&texts)?;
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
    pub device: DeviceNumber,
    /// Whether the pod's mount is read-only.
    pub read_only: bool,
    /// Whether the container gets the raw device as well.
    pub device_node: bool,
    /// The attributes of the volume's mount, such as `nosuid`.
    pub attributes: MountAttrFlags,
}

impl VolumeProperties {
    pub(super) fn new(config: &Config, info: &MountInfo, plan: &MountPlan) -> Self {
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

/// Returns the properties of a staged volume. Fails if the volume can't be mounted.
///
/// Reads the volume's record and opens its device, but takes no lock.
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
        Ok(VolumeProperties::new(config, volume.info(), &plan))
    };
    planned().map_err(|cause| VolumeError::new(volume.target(), cause))
}

/// Reads the volume that is staged at a target path. Fails if none is staged there.
pub fn read_staged(crust: &CrustDirectory, target: &TargetPath) -> Result<Volume, VolumeError> {
    let volume = try_read_staged(crust, target);
    volume.map_err(|cause| VolumeError::new(target, cause))
}

/// Reads a staged volume as [`read_staged`] does, with an error that doesn't name the volume yet.
pub(super) fn try_read_staged(
    crust: &CrustDirectory,
    target: &TargetPath,
) -> Result<Volume, Cause> {
    let volume = crust.volume(target)?;
    volume.ok_or_else(|| Cause::NotStaged(target.clone()))
}

/// Fails if a device isn't the disk that was staged.
///
/// A device isn't held open between its stage and its first mount. If it is detached meanwhile (`losetup -D`, a removed
/// disk), its name and number are soon reused, and the pod would get the data of another volume. An entry without a
/// disk sequence number (from an earlier version or another writer) is compared by its path. Nothing is compared if the
/// kernel doesn't report a sequence number.
pub(super) fn check_disk(info: &MountInfo, device: &DeviceFacts) -> Result<(), Cause> {
    let Some(staged) = info.disk_seq else {
        return check_path(info, device);
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

/// Compares a device that was found by the number in a record with the staged path. If the device isn't mounted, its
/// number may have been reused for another disk.
fn check_path(info: &MountInfo, device: &DeviceFacts) -> Result<(), Cause> {
    if device.path() == info.device {
        return Ok(());
    }
    let (now, mounted) = (Device::open(&info.device)?.number(), device.number());
    if now == mounted {
        return Ok(());
    }
    Err(Cause::DevicePathMoved {
        path: info.device.display().to_string(),
        now,
        mounted,
    })
}
