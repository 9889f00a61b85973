//! A device together with its facts, which are looked up when they are first needed.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom, ioctl_blksszget, seek};
use rustix::io::Errno;

use super::{
    Aliases, Device, DeviceError, DeviceNumber, DiskSeq, LoopDeviceCache, SYSFS, loop_device_cache,
    loop_status_of_opened, read_loop_status, sysfs,
};
use crate::signature::Signature;
use crate::sys::loops;

/// A device that is about to be mounted, with its facts: size, logical block size, superblock, disk sequence number and
/// aliases. Each fact is looked up when it is first needed.
///
/// Once the device is [held open](Self::opened), facts come from its descriptor and are remembered: they can't be those
/// of another disk. Before that they come from sysfs, which never waits for the device.
///
/// A fact whose lookup has failed is looked up again the next time.
#[derive(Debug)]
pub struct DeviceFacts {
    device: Device,
    opened: OnceCell<OwnedFd>,
    size: OnceCell<u64>,
    logical_block: OnceCell<u64>,
    is_read_only: OnceCell<bool>,
    disk_seq: OnceCell<Option<DiskSeq>>,
    aliases: OnceCell<Aliases>,
    signature: OnceCell<Option<Signature>>,
}

impl From<Device> for DeviceFacts {
    fn from(device: Device) -> Self {
        Self {
            device,
            opened: OnceCell::new(),
            size: OnceCell::new(),
            logical_block: OnceCell::new(),
            is_read_only: OnceCell::new(),
            disk_seq: OnceCell::new(),
            aliases: OnceCell::new(),
            signature: OnceCell::new(),
        }
    }
}

/// Returns the value of `cell`, after setting it to the result of `look_up` if it is empty.
fn get_or_try_init<T, E>(
    cell: &OnceCell<T>,
    look_up: impl FnOnce() -> Result<T, E>,
) -> Result<&T, E> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = look_up()?;
    Ok(cell.get_or_init(|| value))
}

impl DeviceFacts {
    /// Returns the device that the facts are about.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device's path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Returns the device number.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        self.device.number()
    }

    /// Opens the device for reading and holds it open as long as this value lives. It can't be detached meanwhile, and
    /// the blocks that have been read stay in the page cache.
    pub fn opened(&self) -> Result<&OwnedFd, Errno> {
        get_or_try_init(&self.opened, || {
            self.device.open_for_reading(OFlags::empty())
        })
    }

    /// Returns the device's size in bytes.
    pub fn size(&self) -> Result<u64, DeviceError> {
        let from_device = |device: &OwnedFd| seek(device, SeekFrom::End(0)).ok();
        self.remember_if_opened(&self.size, from_device, || self.device.size())
    }

    /// Returns the size of the device's logical blocks in bytes. Opens the device.
    pub(crate) fn logical_block(&self) -> Result<u64, Errno> {
        get_or_try_init(&self.logical_block, || {
            ioctl_blksszget(self.opened()?).map(u64::from)
        })
        .copied()
    }

    /// Returns whether the device refuses writes (`blockdev --setro`, `losetup --read-only`).
    pub fn is_read_only(&self) -> Result<bool, DeviceError> {
        let from_device = |device: &OwnedFd| loops::is_read_only(device).ok();
        let from_sysfs = || self.device.is_read_only();
        self.remember_if_opened(&self.is_read_only, from_device, from_sysfs)
    }

    /// Returns the sequence number of the disk, as [`Device::disk_seq`] does.
    pub fn disk_seq(&self) -> Result<Option<DiskSeq>, DeviceError> {
        // The ioctl fails before Linux 5.15.
        let from_device = |device: &OwnedFd| loops::disk_seq(device).ok().map(Some);
        self.remember_if_opened(&self.disk_seq, from_device, || self.device.disk_seq())
    }

    /// Returns a fact, and remembers it if the device is held open. While the device isn't held open, another disk may
    /// get its number, and another process may change it while this process waits for a lock.
    fn remember_if_opened<T: Copy>(
        &self,
        cell: &OnceCell<T>,
        from_device: impl FnOnce(&OwnedFd) -> Option<T>,
        from_sysfs: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let Some(device) = self.opened.get() else {
            return from_sysfs();
        };
        get_or_try_init(cell, || from_device(device).map_or_else(from_sysfs, Ok)).copied()
    }

    /// Returns the signature on the device, which `probe` finds at the first call. Opens the device.
    pub(crate) fn signature(
        &self,
        probe: impl FnOnce(&OwnedFd) -> Result<Option<Signature>, Errno>,
    ) -> Result<Option<Signature>, Errno> {
        get_or_try_init(&self.signature, || probe(self.opened()?)).copied()
    }

    /// Returns the aliases of the device.
    ///
    /// They are not remembered if the device is, or lies on, a loop device. `loop_device_cache::conflicting` skips loop
    /// devices whose backing file doesn't respond, and may do so only because this device's file has responded just
    /// before.
    pub fn aliases(&self) -> Result<Cow<'_, Aliases>, DeviceError> {
        if let Some(aliases) = self.aliases.get() {
            return Ok(Cow::Borrowed(aliases));
        }
        let loop_status = |number| {
            if number == self.number() {
                loop_status_of_opened(&self.device, self.opened())
            } else {
                read_loop_status(number)
            }
        };
        let aliases = Aliases::read(Path::new(SYSFS), loop_status, self.number())?;
        if aliases.has_loop_device() {
            return Ok(Cow::Owned(aliases));
        }
        Ok(Cow::Borrowed(self.aliases.get_or_init(|| aliases)))
    }

    /// Returns which of `devices` conflict with this device. The device conflicts with itself.
    pub fn conflicting(
        &self,
        devices: Vec<DeviceNumber>,
        loop_devices: &LoopDeviceCache,
    ) -> Result<Vec<DeviceNumber>, DeviceError> {
        let aliases = self.aliases()?;
        loop_device_cache::conflicting(&aliases, devices, loop_devices)
    }

    /// Returns the other loop devices that have the same data. The kernel's exclusive claims don't cover these, and two
    /// file systems on the same data destroy each other.
    ///
    /// Devices that lie on one of these aren't returned, because a claim of such a device also claims the loop device.
    pub fn conflicting_loop_devices(
        &self,
        loop_devices: &LoopDeviceCache,
    ) -> Result<Vec<Device>, DeviceError> {
        let aliases = self.aliases()?;
        let mut others = sysfs::loop_devices()?;
        others.retain(|number| !aliases.include(*number));
        let conflicting =
            loop_device_cache::conflicting(&aliases, others, loop_devices)?.into_iter();
        let opened = conflicting.filter_map(|number| Device::find_by_number(number).transpose());
        opened.collect()
    }
}
