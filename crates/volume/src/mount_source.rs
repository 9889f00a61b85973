//! The sources that volumes are mounted from: block devices and shares. Everything in which they differ while a volume
//! is checked, mounted and owned is in the two modules below.

mod block_device;
mod share;

use std::fmt::{Debug, Display};
use std::os::fd::OwnedFd;

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::options::MountOptions;
use crust_blockfs::{DeviceNumber, DiskSeq};
use crust_state::lock::Lock;
use crust_state::{Backing, BackingKey, MountInfo};

use super::context::Context;
use super::error::Cause;
use super::mount_holder::MountHolder;
use super::superblock::ShownOptions;
use crate::sandbox::Sandbox;
use block_device::BlockDeviceSource;
use share::ShareSource;

/// The source of a planned mount. [`Display`] names it for messages, as the volume's metadata does.
pub(super) trait MountSource: Debug + Display {
    fn backing(&self) -> Backing;

    /// Returns the block device; `None` for a share.
    fn device(&self) -> Option<&DeviceFacts>;

    /// Returns whether only a read-only superblock can be made.
    fn is_read_only(&self) -> Result<bool, Cause>;

    /// Returns the disk's sequence number; `None` without a disk, or if the kernel doesn't report it.
    fn disk_seq(&self) -> Result<Option<DiskSeq>, Cause>;

    /// Fails if this kernel certainly can't mount the source as a type that the configuration allows.
    fn check_supported(&self, fstype: &str) -> Result<(), Cause>;

    /// Fails if this isn't what was staged.
    fn check_staged(&self, info: &MountInfo) -> Result<(), Cause>;

    /// Locks the source for the time of a mount, and holds it, so that it can't be replaced until it is mounted.
    /// `None` if it needs no lock.
    fn lock(&self, context: &Context<'_>) -> Result<Option<Lock>, Cause>;

    /// Takes the lock of all lists of owners, and finds the lists that concern this source. `has_users` says whether the
    /// volume has users already.
    fn lock_owners(&self, context: &Context<'_>, has_users: bool) -> Result<OwnerLists, Cause>;

    /// Returns the lists of owners that concern this source now. Takes no lock.
    fn find_owner_lists(&self, context: &Context<'_>) -> Result<Vec<BackingKey>, Cause>;

    /// Fails if a holder without a record excludes a mount. Waits up to a second for a holder that has just ended.
    fn check_not_held(&self, context: &Context<'_>) -> Result<(), Cause>;

    /// Returns whether a holder without a record seems to exclude a mount. Opens nothing exclusively.
    fn seems_held(&self) -> Result<bool, Cause>;

    /// Fails if the server of a mounted share doesn't answer. `root` is the root of the mount.
    fn check_answers(&self, root: &OwnedFd) -> Result<(), Cause>;

    /// Returns the cause if the source, and not the node, has refused to set fsGroup.
    fn refused_fs_group(&self, group: u32, error: &FsGroupError) -> Option<Cause>;

    /// Converts an error of fsGroup that isn't a refusal. The hint is one for this kind of source.
    fn fs_group_cause(&self, error: FsGroupError) -> Cause;

    /// Returns how the mount table shows the options of a superblock of this source.
    fn shown_options(&self) -> ShownOptions;

    /// Makes a mount that isn't attached anywhere.
    fn mount(&self, request: &SourceMountRequest<'_>) -> Result<SourceMount, Cause>;
}

/// The lists of owners that concern a source, with the lock of all lists.
#[derive(Debug)]
pub(super) struct OwnerLists {
    pub(super) keys: Vec<BackingKey>,
    /// Released when it is dropped.
    pub(super) _lock: Lock,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SourceMountRequest<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) fstype: &'a str,
    pub(super) options: &'a MountOptions,
    /// Whether the source must not be mounted already, if it can only be mounted once.
    pub(super) exclusive: bool,
    /// The sandbox that the volume is mounted in, if it has one.
    pub(super) sandbox: Option<&'a Sandbox>,
    /// The process that holds the mount beyond the end of its user; `None` if no such process is wanted.
    pub(super) holder: Option<MountHolder<'a>>,
}

/// A mount that isn't attached anywhere.
#[derive(Debug)]
pub(super) struct SourceMount {
    pub(super) root: OwnedFd,
    /// The number of the superblock, if it isn't the backing's number.
    pub(super) superblock: Option<DeviceNumber>,
}

/// Opens the source that was staged.
pub(super) fn open_staged(info: &MountInfo) -> Result<Box<dyn MountSource>, Cause> {
    Ok(match info.share()? {
        Some(share) => Box::new(ShareSource(share)),
        None => Box::new(BlockDeviceSource::from(Device::open(&info.device)?)),
    })
}

/// Opens the source that users of a volume have mounted, wherever the staged path leads now.
pub(super) fn open_mounted(backing: &Backing) -> Result<Box<dyn MountSource>, Cause> {
    Ok(match backing {
        Backing::Share(share) => Box::new(ShareSource(share.clone())),
        Backing::Device(number) => {
            let device = Device::find_by_number(*number)?;
            Box::new(BlockDeviceSource::from(
                device.ok_or(Cause::DeviceGone(*number))?,
            ))
        }
    })
}

/// Returns the backing that was staged; `None` if it is a device that can't be opened.
pub(super) fn staged_backing(info: &MountInfo) -> Option<Backing> {
    open_staged(info).ok().map(|source| source.backing())
}

/// Returns the device that a mount on this backing keeps busy. `None` for a share, or if the device is gone.
pub(super) fn find_device(backing: BackingKey) -> Result<Option<Device>, Cause> {
    Ok(match backing.device() {
        Some(number) => Device::find_by_number(number)?,
        None => None,
    })
}
