//! Block devices as the source of volumes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crust_blockfs::device::{Device, DeviceFacts, OwnerListVersion};
use crust_blockfs::device_mounts::{is_on, may_be_on};
use crust_blockfs::filesystem::{self, MountRequest};
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::mountinfo::MountInfo as MountTable;
use crust_blockfs::{DeviceNumber, DiskSeq};
use crust_state::lock::{Lock, LockName};
use crust_state::{Backing, BackingKey, MountInfo};

use super::{MountSource, OwnerLists, SourceMount, SourceMountRequest};
use crate::context::Context;
use crate::error::Cause;
use crate::superblock::ShownOptions;

/// The time for which a device may stay busy after the last process that had it mounted ended: data is written back,
/// and a killed process needs a moment to end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct BlockDeviceSource(DeviceFacts);

impl From<Device> for BlockDeviceSource {
    fn from(device: Device) -> Self {
        Self(device.into())
    }
}

impl fmt::Display for BlockDeviceSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.path().display().fmt(formatter)
    }
}

impl MountSource for BlockDeviceSource {
    fn backing(&self) -> Backing {
        self.0.number().into()
    }

    fn device(&self) -> Option<&DeviceFacts> {
        Some(&self.0)
    }

    fn is_read_only(&self) -> Result<bool, Cause> {
        Ok(self.0.is_read_only()?)
    }

    fn disk_seq(&self) -> Result<Option<DiskSeq>, Cause> {
        Ok(self.0.disk_seq()?)
    }

    /// The file system may be on the device of a volume that will never be used on this kernel, and a kernel may have it
    /// later. The mount reports the error.
    fn check_supported(&self, _: &str) -> Result<(), Cause> {
        Ok(())
    }

    /// A device isn't held open between its stage and its first mount. If it is detached meanwhile (`losetup -D`, a
    /// removed disk), its name and number are soon reused, and the pod would get the data of another volume. An entry
    /// without a disk sequence number (from an earlier version or another writer) is compared by its path. Nothing is
    /// compared if the kernel doesn't report a sequence number.
    fn check_staged(&self, info: &MountInfo) -> Result<(), Cause> {
        let Some(staged) = info.disk_seq else {
            return self.check_path(info);
        };
        match self.0.disk_seq()? {
            Some(now) if now != staged => Err(Cause::OtherDisk {
                device: self.to_string(),
                staged,
                now,
            }),
            _ => Ok(()),
        }
    }

    /// The lock is held while the device is read, which may take long. Operations on other devices don't wait for it.
    fn lock(&self, context: &Context<'_>) -> Result<Option<Lock>, Cause> {
        let name = LockName::Device(self.0.number());
        let lock = context.state.lock(name, context.deadline)?;
        // While the device is open its number can't be reused for another disk, so facts read from now on stay valid
        // until the file system is mounted. A device that can't be opened can't be mounted either: the mount reports the
        // error.
        let _ = self.0.opened();
        Ok(Some(lock))
    }

    fn lock_owners(&self, context: &Context<'_>, has_users: bool) -> Result<OwnerLists, Cause> {
        let mut probe_all = !has_users;
        let (mut known_lists, mut devices) = (Vec::new(), Vec::new());
        let lock = loop {
            // Devices are probed before the lock is taken, because the whole node shares the lock and a loop device's
            // file may be on a file system that hangs. If a list of owners has changed between the probes and the lock,
            // the loop runs again.
            let lists = context.state.owner_list_versions()?;
            context.loop_devices.forget_outdated(&lists);
            let changed = changed_lists(&lists, &known_lists);
            known_lists = lists;
            if std::mem::take(&mut probe_all)
                && let Err(error) = context.loop_devices.probe_all()
            {
                // This only fills the cache, because the mount of the first user needs the results for all devices
                // anyway. If a result that is needed is missing, the call that needs it fails.
                tracing::debug!("{error}");
            }
            devices.retain(|device| !changed.contains(device));
            devices.extend(self.related(context, changed)?);
            let lock = context.state.lock(LockName::Owners, context.deadline)?;
            if changed_lists(&context.state.owner_list_versions()?, &known_lists).is_empty() {
                break lock;
            }
        };
        context.loop_devices.note_alive(self.0.number());
        Ok(OwnerLists {
            keys: devices.into_iter().map(BackingKey::Device).collect(),
            _lock: lock,
        })
    }

    fn find_owner_lists(&self, context: &Context<'_>) -> Result<Vec<BackingKey>, Cause> {
        let devices = context.state.backings_with_volumes()?.into_iter();
        let devices = devices.filter_map(BackingKey::device).collect();
        let related = self.related(context, devices)?.into_iter();
        Ok(related.map(BackingKey::Device).collect())
    }

    fn check_not_held(&self, context: &Context<'_>) -> Result<(), Cause> {
        let mut busy = None;
        let free = context.deadline.at_most(RELEASE_TIMEOUT).poll(|| {
            busy = self.busy_cause(context)?;
            Ok::<_, Cause>(busy.is_none().then_some(()))
        })?;
        match (free, busy) {
            (None, Some(cause)) => Err(cause),
            _ => Ok(()),
        }
    }

    /// Reads the mount table and sysfs. A create opens the device exclusively instead, which would make the mount of
    /// another create fail meanwhile.
    fn seems_held(&self) -> Result<bool, Cause> {
        let number = self.0.number();
        let mounts = MountTable::read_own()?.select(|line| may_be_on(line, number))?;
        Ok(mounts.iter().any(|mount| is_on(mount, number)) || self.0.device().has_holders()?)
    }

    /// Disks that hang recover or fail by themselves.
    fn check_answers(&self, _: &OwnedFd) -> Result<(), Cause> {
        Ok(())
    }

    fn refused_fs_group(&self, _: u32, _: &FsGroupError) -> Option<Cause> {
        None
    }

    fn fs_group_cause(&self, error: FsGroupError) -> Cause {
        error.into()
    }

    fn shown_options(&self) -> ShownOptions {
        ShownOptions::AsGiven
    }

    fn mount(&self, request: &SourceMountRequest<'_>) -> Result<SourceMount, Cause> {
        let root = filesystem::mount_detached(&MountRequest {
            device: &self.0,
            fstype: request.fstype,
            options: request.options,
            exclusive: request.exclusive,
        })?;
        Ok(SourceMount {
            root,
            superblock: None,
        })
    }
}

impl BlockDeviceSource {
    /// Compares a device that was found by the number in a record with the staged path. If the device isn't mounted, its
    /// number may have been reused for another disk.
    fn check_path(&self, info: &MountInfo) -> Result<(), Cause> {
        if self.0.path() == info.device {
            return Ok(());
        }
        let (now, mounted) = (Device::open(&info.device)?.number(), self.0.number());
        if now == mounted {
            return Ok(());
        }
        Err(Cause::DevicePathMoved {
            path: info.device.display().to_string(),
            now,
            mounted,
        })
    }

    /// Returns which of the devices are this device or have the same data. A device that is gone has no data.
    fn related(
        &self,
        context: &Context<'_>,
        mut devices: Vec<DeviceNumber>,
    ) -> Result<Vec<DeviceNumber>, Cause> {
        let own = self.0.number();
        let count = devices.len();
        devices.retain(|device| *device != own);
        let has_own = devices.len() < count;
        let mut related = self.0.conflicting(devices, context.loop_devices)?;
        related.extend(has_own.then_some(own));
        Ok(related)
    }

    /// Returns an error if the device, or a device with the same data, is held; `None` if they are free.
    fn busy_cause(&self, context: &Context<'_>) -> Result<Option<Cause>, Cause> {
        let device = self.0.device();
        if device.is_held_exclusively()? {
            let device = self.to_string();
            return Ok(Some(Cause::DeviceBusy { device }));
        }
        for rival in self.0.conflicting_loop_devices(context.loop_devices)? {
            if rival.is_held_exclusively()? {
                let (device, rival) = (self.to_string(), rival.path().display().to_string());
                return Ok(Some(Cause::RivalBusy { device, rival }));
            }
        }
        Ok(None)
    }
}

/// Returns the devices whose lists of owners aren't among the known ones.
fn changed_lists(lists: &[OwnerListVersion], known: &[OwnerListVersion]) -> Vec<DeviceNumber> {
    let changed = lists
        .iter()
        .filter(|list| known.binary_search(list).is_err());
    changed.map(|list| list.device).collect()
}
