//! `NodeUnpublishVolume`: the pod has ended. And what `NodeUnpublishVolume` and `NodeUnstageVolume` do for a volume
//! that doesn't exist any more, because it was deleted while its pod was being removed by force, or the node was down.
//!
//! CSI has `NOT_FOUND` for such a volume, after which kubelet asks again for ever, and the pod's directory stays. So it
//! is given back by what is found at the path. What is mounted there and isn't provably this volume's stays, and is an
//! error.

use crust_blockfs::device::Device;
use crust_proto::csi::v1::{NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse};
use crust_serve::client::CallFailure;
use crust_state::TargetPath;

use crate::driver::{Driver, check_present, parse_path, path_key};
use crate::features::Feature;
use crate::kubelet_paths;
use crate::mounts;
use crate::refusal::Refusal;
use crate::store::{Mounter, Publication, Record, is_id};

impl Driver {
    /// `NodeUnpublishVolume`.
    pub(crate) fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let target = parse_path("target_path", &request.target_path)?;
        let Some(mut record) = self.find_record(id)? else {
            self.unpublish_unknown(id, &target, request.defer_fs_ops)?;
            return Ok(NodeUnpublishVolumeResponse {});
        };
        let _turn = self.lock_target(id, &target)?;
        let devices = self.loop_devices(id)?;
        let published = record.published.get(&path_key(&target));
        let by = published.map(|publication| publication.by);
        if published.is_none() {
            // It was given back before, or its record is an older copy: kubelet's own paths are looked at, and
            // none that another volume has.
            if !kubelet_paths::is_target(&target) {
                return Ok(NodeUnpublishVolumeResponse {});
            }
            self.check_not_other_volumes(id, &target)?;
            if self.is_other_volume_staged(id, &devices, &target)? {
                let what = format!("{} is another volume's", target.as_path().display());
                return Err(Refusal::state(id, what));
            }
        } else if !self.is_surely_published(id, &devices, &target, published)?
            && self.other_volume_at(id, &target)?.is_some()
        {
            // This one never was there, or isn't any more.
            record.published.remove(&path_key(&target));
            self.save_publication_removal(id, &record, by)?;
            return Ok(NodeUnpublishVolumeResponse {});
        }
        // The runtime goes first: until then a pod may still use it.
        if by != Some(Mounter::Driver) && self.features.has(Feature::DeferFsOps) {
            let is_said = request.defer_fs_ops || by == Some(Mounter::Runtime);
            self.unstage_deferred(id, &target, is_said)?;
        }
        mounts::unmount(&devices, published, target.as_path()).map_err(Refusal::node(id))?;
        self.clean_up_path(id, &target)?;
        if record.published.remove(&path_key(&target)).is_some() {
            self.save_publication_removal(id, &record, by)?;
        }
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// kubelets that don't know of deferral don't say that it was deferred: the crust directory does. Where nothing
    /// is to be seen there, a stage may still be under way, and `crust_ops` ends it; unless that isn't there either,
    /// as after a boot.
    pub(super) fn unstage_deferred(
        &self,
        id: &str,
        target: &TargetPath,
        is_said: bool,
    ) -> Result<(), Refusal> {
        let is_staged = self.is_anything_staged(id, target)?;
        if !is_said && !is_staged {
            return Ok(());
        }
        match self.ops.unstage(target) {
            // No stage outlives it, and what one has left is to be seen by now. (What one leaves in its last moment
            // `gc` finds: the target directory is gone by then.)
            Err(CallFailure::Unreachable(_)) if !self.is_anything_staged(id, target)? => Ok(()),
            unstaged => unstaged.map_err(Refusal::ops(id)),
        }
    }

    /// Removes the record of a publication. For one that is left to kubelet the record alone counts, so the removal
    /// must not fail; others are found without it.
    fn save_publication_removal(
        &self,
        id: &str,
        record: &Record,
        by: Option<Mounter>,
    ) -> Result<(), Refusal> {
        if by == Some(Mounter::Kubelet) {
            return Ok(self.store.save_removal(id, record)?);
        }
        self.save_removal(id, record);
        Ok(())
    }

    /// Whether what is at a target path is surely the volume.
    fn is_surely_published(
        &self,
        id: &str,
        devices: &[Device],
        target: &TargetPath,
        published: Option<&Publication>,
    ) -> Result<bool, Refusal> {
        match published {
            Some(publication) if publication.by != Mounter::Kubelet => {
                self.publication_exists(id, devices, &path_key(target), publication)
            }
            _ => Ok(false),
        }
    }
}

impl Driver {
    /// Answers `NodeUnpublishVolume` of a volume that doesn't exist.
    pub(super) fn unpublish_unknown(
        &self,
        id: &str,
        target: &TargetPath,
        defer_fs_ops: bool,
    ) -> Result<(), Refusal> {
        let _turn = self.lock_target(id, target)?;
        let devices = self.loop_devices_of_unknown(id)?;
        self.check_not_other_volumes(id, target)?;
        if self.is_other_volume_staged(id, &devices, target)? {
            let what = format!(
                "{}: another driver's device is staged there for a container runtime; hint: `runcrust crust list` \
                 shows which",
                target.as_path().display()
            );
            return Err(Refusal::state(id, what));
        }
        if self.features.has(Feature::DeferFsOps) {
            self.unstage_deferred(id, target, defer_fs_ops)?;
        }
        self.clean_up_unknown(id, &devices, target)
    }

    /// Answers `NodeUnstageVolume` of a volume that doesn't exist.
    pub(super) fn unstage_unknown(&self, id: &str, staging: &TargetPath) -> Result<(), Refusal> {
        let _turn = self.lock_target(id, staging)?;
        let path = path_key(staging);
        for (other, record) in self.store.all()? {
            if record.is_some_and(|it| it.staged.contains_key(&path)) {
                let what = format!("{path} is the staging path of volume {other}");
                return Err(Refusal::state(id, what));
            }
        }
        let devices = self.loop_devices_of_unknown(id)?;
        self.clean_up_unknown(id, &devices, staging)
    }

    fn clean_up_unknown(
        &self,
        id: &str,
        devices: &[Device],
        place: &TargetPath,
    ) -> Result<(), Refusal> {
        mounts::unmount(devices, None, place.as_path()).map_err(Refusal::node(id))?;
        if kubelet_paths::directory(place, &self.settings.driver_name).is_some() {
            self.clean_up_path(id, place)?;
        }
        tracing::info!("volume {id}: there is none, and nothing of it is left at {place:?}");
        Ok(())
    }

    /// Returns the loop devices of the volume's image, which was unlinked. Other drivers' ids are no names of images.
    fn loop_devices_of_unknown(&self, id: &str) -> Result<Vec<Device>, Refusal> {
        if is_id(id) {
            self.loop_devices(id)
        } else {
            Ok(Vec::new())
        }
    }
}
