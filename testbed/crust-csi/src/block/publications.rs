//! The publications that really exist, as determined from the mount table and the crust directory. A record doesn't
//! suffice: it is written before the publication, and remains after a reboot, which removes the mounts.

use crust_blockfs::device::Device;
use crust_blockfs::loops;
use crust_state::TargetPath;
use crust_state::info::MountInfo;

use super::BlockDriver;
use crate::block::Publication;
use crate::block::mounts;
use crate::block::record::Record;
use crate::mounts::MountsError;
use crate::refusal::Refusal;
use crate::requests::path_key;
use crate::store::Mounter;

/// Returns whether the device of a staged volume has another disk sequence number by now. The entry is then stale.
fn is_another_disk(staged: &MountInfo) -> bool {
    let now = Device::open(&staged.device).and_then(|device| device.disk_seq());
    match (staged.disk_seq, now) {
        (Some(then), Ok(Some(now))) => then != now,
        _ => false,
    }
}

impl BlockDriver {
    /// Fails if another volume is published at the target path.
    pub(crate) fn check_not_other_volumes(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<(), Refusal> {
        match self.other_volume_at(id, target)? {
            None => Ok(()),
            Some(other) => {
                let message = format!("{} belongs to volume {other}", target.as_path().display());
                Err(Refusal::state(id, message))
            }
        }
    }

    /// Returns the other volume that is published at a target path, if there is one.
    pub(crate) fn other_volume_at(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<Option<String>, Refusal> {
        let target = path_key(target);
        for (other, record) in self.store.all()? {
            let published = record.as_ref().and_then(|it| it.published.get(&target));
            if let Some(publication) = published.filter(|_| other != id)
                && self.publication_exists(
                    &other,
                    &self.loop_devices(&other)?,
                    &target,
                    publication,
                )?
            {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Returns the loop devices of a volume. There is more than one if the image was unlinked, or attached a second
    /// time by hand.
    pub(crate) fn loop_devices(&self, id: &str) -> Result<Vec<Device>, Refusal> {
        loops::find_by_name(&self.images.path(id)).map_err(Refusal::node(id))
    }

    /// Returns whether this volume is staged for a runtime at a target path. Assumes it is if the entry can't be read.
    pub(crate) fn is_staged(
        &self,
        id: &str,
        devices: &[Device],
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        match self
            .context
            .crust
            .volume(&self.context.crust.staged_target(target))
        {
            Ok(None) => Ok(false),
            Ok(Some(staged)) => {
                let device = staged.info().device.as_path();
                let is_own_device = devices.iter().any(|it| it.path() == device);
                // The device may have been detached by hand, and another file may have been attached to it since.
                Ok(is_own_device
                    || loops::is_detached(device).map_err(Refusal::node(id))?
                    || is_another_disk(staged.info()))
            }
            Err(_) => self.context.is_anything_staged(id, target),
        }
    }

    /// Returns whether another volume is staged for a runtime at a target path.
    pub(crate) fn is_other_volume_staged(
        &self,
        id: &str,
        devices: &[Device],
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        let is_staged = self.context.is_anything_staged(id, target)?;
        Ok(is_staged && !self.is_staged(id, devices, target)?)
    }

    /// Fails if the volume is published to a pod.
    pub(crate) fn check_unpublished(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        match self.existing_publications(id, record)?.first() {
            None => Ok(()),
            Some((target, _)) => {
                let what =
                    format!("it is published at {target}; hint: call NodeUnpublishVolume first");
                Err(Refusal::state(id, what))
            }
        }
    }

    /// Returns those publications of a record that really exist, with their target paths.
    pub(crate) fn existing_publications<'r>(
        &self,
        id: &str,
        record: &'r Record,
    ) -> Result<Vec<(&'r str, &'r Publication)>, Refusal> {
        if record.published.is_empty() {
            return Ok(Vec::new());
        }
        let devices = self.loop_devices(id)?;
        let mut existing = Vec::new();
        for (path, publication) in &record.published {
            if self.publication_exists(id, &devices, path, publication)? {
                existing.push((path.as_str(), publication));
            }
        }
        Ok(existing)
    }

    /// Returns whether a publication of a record really exists.
    pub(crate) fn publication_exists(
        &self,
        id: &str,
        devices: &[Device],
        path: &str,
        publication: &Publication,
    ) -> Result<bool, Refusal> {
        let Ok(target) = TargetPath::new(path) else {
            return Ok(false);
        };
        match publication.by {
            Mounter::Driver => match mounts::is_mounted_at(devices, target.as_path()) {
                // Another mount is at the path. It counts only if it is the volume's device, detached by hand.
                Err(MountsError::Occupied { .. }) => {
                    mounts::is_detached_block_device(publication, target.as_path())
                        .map_err(Refusal::node(id))
                }
                other => other.map_err(Refusal::node(id)),
            },
            Mounter::Runtime => self.is_staged(id, devices, &target),
            // The driver can't determine whether the runtime has mounted the volume. The publication exists until
            // kubelet unpublishes it.
            Mounter::Kubelet => Ok(true),
        }
    }
}
