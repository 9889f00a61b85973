//! A device with what was found out about it.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom, ioctl_blksszget, seek};
use rustix::io::Errno;

use super::{
    Aliases, Device, DeviceError, DeviceNumber, DiskSeq, Neighbours, SYSFS, neighbours, shown_by,
    shown_by_opened, sysfs,
};
use crate::signature::Signature;
use crate::sys::loops;

/// A device that is about to be mounted, from the moment its volume is claimed until the mount is there. Each fact is
/// asked for when it is first needed: size, logical block, superblock, disk sequence number, aliases.
///
/// While the device is [held open](Self::opened) the facts come from its descriptor, so that they can't be another
/// disk's, and are remembered. Until then they come from sysfs, which never waits for the device.
///
/// A fact that couldn't be found out is asked for again the next time.
#[derive(Debug)]
pub struct DeviceFacts {
    device: Device,
    opened: OnceCell<OwnedFd>,
    size: OnceCell<u64>,
    sector: OnceCell<u64>,
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
            sector: OnceCell::new(),
            is_read_only: OnceCell::new(),
            disk_seq: OnceCell::new(),
            aliases: OnceCell::new(),
            signature: OnceCell::new(),
        }
    }
}

/// Returns what is known, or else asks and remembers the answer.
fn known<T, E>(cell: &OnceCell<T>, ask: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
    if let Some(known) = cell.get() {
        return Ok(known);
    }
    let answer = ask()?;
    Ok(cell.get_or_init(|| answer))
}

impl DeviceFacts {
    /// The device that the facts are about.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The device's path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Major and minor number.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        self.device.number()
    }

    /// Opens the device for reading and holds it open as long as this value lives: it can't be detached meanwhile, and
    /// what the kernel has read of it stays in memory.
    pub fn opened(&self) -> Result<&OwnedFd, Errno> {
        known(&self.opened, || {
            self.device.open_for_reading(OFlags::empty())
        })
    }

    /// Returns how many bytes the device has.
    pub fn size(&self) -> Result<u64, DeviceError> {
        let from_device = |device: &OwnedFd| seek(device, SeekFrom::End(0)).ok();
        self.remembered_if_opened(&self.size, from_device, || self.device.size())
    }

    /// Returns the size of the device's logical blocks in bytes. Opens the device.
    pub(crate) fn logical_block(&self) -> Result<u64, Errno> {
        known(&self.sector, || {
            ioctl_blksszget(self.opened()?).map(u64::from)
        })
        .copied()
    }

    /// Returns true if the device refuses writes (`blockdev --setro`, `losetup --read-only`).
    pub fn is_read_only(&self) -> Result<bool, DeviceError> {
        let from_device = |device: &OwnedFd| loops::is_read_only(device).ok();
        let from_sysfs = || self.device.is_read_only();
        self.remembered_if_opened(&self.is_read_only, from_device, from_sysfs)
    }

    /// Returns the disk's number among all that the kernel ever made; see [`Device::disk_seq`].
    pub fn disk_seq(&self) -> Result<Option<DiskSeq>, DeviceError> {
        // It fails before Linux 5.15.
        let from_device = |device: &OwnedFd| loops::disk_seq(device).ok().map(Some);
        self.remembered_if_opened(&self.disk_seq, from_device, || self.device.disk_seq())
    }

    /// Returns a fact, and remembers it if the device is held open: until then it may become another disk, and another
    /// process may change it while this one waits for a lock.
    fn remembered_if_opened<T: Copy>(
        &self,
        cell: &OnceCell<T>,
        from_device: impl FnOnce(&OwnedFd) -> Option<T>,
        from_sysfs: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let Some(device) = self.opened.get() else {
            return from_sysfs();
        };
        known(cell, || from_device(device).map_or_else(from_sysfs, Ok)).copied()
    }

    /// Returns the superblock that `probe` finds on the device, or found the first time. Opens the device.
    pub(crate) fn signature(
        &self,
        probe: impl FnOnce(&OwnedFd) -> Result<Option<Signature>, Errno>,
    ) -> Result<Option<Signature>, Errno> {
        known(&self.signature, || probe(self.opened()?)).copied()
    }

    /// Returns what this device is and what it lies on.
    ///
    /// What a loop device shows isn't remembered. `neighbours::conflicting` passes a loop device whose file doesn't
    /// answer, because the file of this one has answered just before.
    pub fn aliases(&self) -> Result<Cow<'_, Aliases>, DeviceError> {
        if let Some(known) = self.aliases.get() {
            return Ok(Cow::Borrowed(known));
        }
        let ask = |number| {
            if number == self.number() {
                shown_by_opened(&self.device, self.opened())
            } else {
                shown_by(number)
            }
        };
        let aliases = Aliases::read(Path::new(SYSFS), ask, self.number())?;
        if aliases.has_loop_device() {
            return Ok(Cow::Owned(aliases));
        }
        Ok(Cow::Borrowed(self.aliases.get_or_init(|| aliases)))
    }

    /// Returns those of other devices that this one conflicts with; itself among them.
    pub fn conflicting(
        &self,
        devices: Vec<DeviceNumber>,
        neighbours: &Neighbours,
    ) -> Result<Vec<DeviceNumber>, DeviceError> {
        let own = self.aliases()?;
        neighbours::conflicting(&own, devices, neighbours)
    }

    /// Returns the loop devices that show the same bytes. The kernel's exclusive claims don't cover that, and two file
    /// systems on them would destroy each other. Whoever holds a device that lies on one holds that one, too.
    pub fn rivals(&self, neighbours: &Neighbours) -> Result<Vec<Device>, DeviceError> {
        let own = self.aliases()?;
        let mut loops = sysfs::loops()?;
        loops.retain(|number| !own.are_of(*number));
        let rivals = neighbours::conflicting(&own, loops, neighbours)?.into_iter();
        let opened = rivals.filter_map(|number| Device::of_number(number).transpose());
        opened.collect()
    }
}
