//! Plans the mount of a staged volume: its source, which must be the one that was staged, and its options.

use crust_blockfs::DeviceNumber;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::config::DeviceNode;
use crust_state::info::{AccessMode, PodAccess, VolumeType};
use crust_state::record::{Superblock, VolumeRecord};
use crust_state::{Backing, Config, CrustDirectory, MountInfo, TargetPath, Volume};

use rustix::mount::MountAttrFlags;

use super::error::{Cause, VolumeError};
use super::mount_source::{self, MountSource};
use super::users::live_record;
use crust_blockfs::fstypes;
use crust_blockfs::options::{self, MountOptions};

/// A plan to mount a volume. Its metadata is valid. If it is on a device, the device exists.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub(super) source: Box<dyn MountSource>,
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
    /// `in_use` is what live users of the volume have mounted. The staged path of a device is only used without such
    /// users: it may lead to another device now, because udev removes and changes the links in `/dev/disk`.
    pub(super) fn new(
        config: &Config,
        info: &MountInfo,
        in_use: Option<&Backing>,
    ) -> Result<Self, Cause> {
        check(config, info)?;
        let mut options = mount_options(config, info)?;
        let source = match in_use {
            Some(backing) => mount_source::open_mounted(backing)?,
            None => mount_source::open_staged(info)?,
        };
        // A read-only device can only have a read-only superblock. For a pod that wants to write, the mount fails.
        options.read_only |= info.read_only && in_use.is_none() && source.is_read_only()?;
        let read_only = info.read_only || options.read_only;
        let fs_group = info
            .fs_group
            .map(|group| (group, info.fs_group_change_policy));
        Ok(Self {
            superblock: superblock(&info.fstype, &options),
            exclusive: info.access() == PodAccess::Exclusive,
            fs_group: fs_group.filter(|_| !read_only),
            read_only,
            source,
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

/// Checks the file system type, which needs no device. [`MountInfo`] has checked that it fits the volume type.
pub(super) fn check(config: &Config, info: &MountInfo) -> Result<(), Cause> {
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
    if info.volume_type == VolumeType::Network {
        // `default_options` are written for block devices: only those that every mount has apply to a share.
        options.fs_options = options::parse(&info.options)?.fs_options;
        options = crust_nfs::options::normalize(&options, &info.fstype)?;
    }
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
    /// The block device; `None` if the volume isn't on a device of this node.
    pub device: Option<DeviceNumber>,
    /// Whether the pod's mount is read-only.
    pub read_only: bool,
    /// Whether the container gets the raw device as well.
    pub device_node: bool,
    /// The attributes of the volume's mount, such as `nosuid`.
    pub attributes: MountAttrFlags,
}

impl VolumeProperties {
    pub(super) fn new(config: &Config, info: &MountInfo, plan: &MountPlan) -> Self {
        let device = plan.source.backing().device();
        let device_node = match config.device_node {
            DeviceNode::Metadata => info.device_node,
            DeviceNode::Always => true,
            DeviceNode::Never => false,
        };
        Self {
            device,
            read_only: plan.read_only,
            attributes: plan.options.attributes,
            device_node: device_node && device.is_some(),
        }
    }
}

/// Returns the properties of a staged volume. Fails if the volume can't be mounted.
///
/// Reads the volume's record and opens its device, but takes no lock and asks no server.
pub fn volume_properties(
    config: &Config,
    volume: &Volume,
) -> Result<VolumeProperties, VolumeError> {
    let planned = || -> Result<_, Cause> {
        let live = live_record(volume)?;
        let in_use = live.map(|record| record.backing);
        let plan = MountPlan::new(config, volume.info(), in_use.as_ref())?;
        if in_use.is_none() {
            plan.source.check_staged(volume.info())?;
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
