//! The publications that really exist. A record is written before anything is done, and mounts don't outlast a boot: so
//! the mount table and the crust directory are read.

use crust_blockfs::device::Device;
use crust_blockfs::loops;
use crust_state::TargetPath;
use crust_state::info::MountInfo;

use super::{Driver, path_key};
use crate::mounts::{self, MountsError};
use crate::refusal::Refusal;
use crate::store::{Mounter, Publication, Record};

/// Returns whether the device of a staged volume shows another disk by now, so that its entry is stale.
fn is_another_disk(staged: &MountInfo) -> bool {
    let now = Device::open(&staged.device).and_then(|device| device.disk_seq());
    match (staged.disk_seq, now) {
        (Some(then), Ok(Some(now))) => then != now,
        _ => false,
    }
}

impl Driver {
    /// A target path that another volume has is its own.
    pub(crate) fn check_not_other_volumes(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<(), Refusal> {
        match self.other_volume_at(id, target)? {
            None => Ok(()),
            Some(other) => {
                let what = format!("{} is volume {other}'s", target.as_path().display());
                Err(Refusal::state(id, what))
            }
        }
    }

    /// Another volume that is at a target path.
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

    /// The loop devices of a volume: one or none, but where its image was unlinked, or somebody has attached
    /// it a second time.
    pub(crate) fn loop_devices(&self, id: &str) -> Result<Vec<Device>, Refusal> {
        loops::find_by_name(&self.images.path(id)).map_err(Refusal::node(id))
    }

    /// Returns whether anything is staged at a target path for a runtime. The crust directory is read, and no record:
    /// the directory doesn't outlast a boot, as mounts don't.
    pub(crate) fn is_anything_staged(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        let target = self.crust.target_of(target);
        self.crust.has_entry(&target).map_err(Refusal::node(id))
    }

    /// Returns whether this volume is staged there for a runtime, as far as that can be told.
    pub(crate) fn is_staged(
        &self,
        id: &str,
        devices: &[Device],
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        match self.crust.volume(&self.crust.target_of(target)) {
            Ok(None) => Ok(false),
            Ok(Some(staged)) => {
                let device = staged.info().device.as_path();
                let is_its = devices.iter().any(|it| it.path() == device);
                // Somebody has detached it by hand, and another file may be attached there since.
                Ok(is_its
                    || loops::is_detached(device).map_err(Refusal::node(id))?
                    || is_another_disk(staged.info()))
            }
            Err(_) => self.is_anything_staged(id, target),
        }
    }

    /// Whether a runtime finds another volume there.
    pub(crate) fn is_other_volume_staged(
        &self,
        id: &str,
        devices: &[Device],
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        let is_staged = self.is_anything_staged(id, target)?;
        Ok(is_staged && !self.is_staged(id, devices, target)?)
    }

    /// Refuses what would take a volume from a pod.
    pub(crate) fn check_unpublished(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        match self.existing_publications(id, record)?.first() {
            None => Ok(()),
            Some((target, _)) => {
                let what =
                    format!("it is published at {target}; hint: NodeUnpublishVolume comes first");
                Err(Refusal::state(id, what))
            }
        }
    }

    /// The publications that there really are.
    pub(crate) fn existing_publications<'r>(
        &self,
        id: &str,
        record: &'r Record,
    ) -> Result<Vec<(&'r str, &'r Publication)>, Refusal> {
        if record.published.is_empty() {
            return Ok(Vec::new());
        }
        let devices = self.loop_devices(id)?;
        let mut live = Vec::new();
        for (path, publication) in &record.published {
            if self.publication_exists(id, &devices, path, publication)? {
                live.push((path.as_str(), publication));
            }
        }
        Ok(live)
    }

    /// Whether a publication on record really is there.
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
                // Whose it is doesn't matter here, if it isn't a device that was detached by hand.
                Err(MountsError::Occupied { .. }) => {
                    mounts::is_detached_block_device(publication, target.as_path())
                        .map_err(Refusal::node(id))
                }
                other => other.map_err(Refusal::node(id)),
            },
            Mounter::Runtime => self.is_staged(id, devices, &target),
            // Nobody tells us; it is kubelet's until it says otherwise.
            Mounter::Kubelet => Ok(true),
        }
    }
}
