//! `NodeUnpublishVolume`, and what it and `NodeUnstageVolume` do for a volume that doesn't exist any more. A volume can
//! be deleted while its pod is removed by force, or while the node is down.
//!
//! CSI specifies `NOT_FOUND` for such a volume, but then kubelet repeats the call for ever and the pod's directory
//! stays. So the path is cleaned up according to what is found there. A mount that can't be shown to be this volume's
//! is left, and is an error.

use crust_blockfs::device::Device;
use crust_proto::csi::v1::{NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse};
use crust_state::TargetPath;

use crate::block::BlockDriver;
use crate::block::Publication;
use crate::block::mounts;
use crate::block::record::Record;
use crate::features::Feature;
use crate::inline_volume::is_inline_id;
use crate::kubelet_paths;
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_path, path_key};
use crate::store::{Mounter, is_id};

impl BlockDriver {
    /// Handles `NodeUnpublishVolume`.
    pub(crate) fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let target = parse_path("target_path", &request.target_path)?;
        let Some(mut record) = self.find_record(id)? else {
            self.unpublish_unknown(id, &target, request.defer_fs_ops)?;
            self.remove_interrupted(id)?;
            return Ok(NodeUnpublishVolumeResponse {});
        };
        let _guard = self.context.lock_target(id, &target)?;
        self.unpublish_at(id, &mut record, &target, request.defer_fs_ops)?;
        if is_inline_id(id) && record.published.is_empty() {
            self.remove_unpublished(id, &record)?;
        }
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Unpublishes a volume from a target path, and removes the publication from its record. The caller must hold the
    /// lock of the path.
    pub(super) fn unpublish_at(
        &self,
        id: &str,
        record: &mut Record,
        target: &TargetPath,
        defer_fs_ops: bool,
    ) -> Result<(), Refusal> {
        let devices = self.loop_devices(id)?;
        let published = record.published.get(&path_key(target));
        let by = published.map(|publication| publication.by);
        if published.is_none() {
            // The volume was unpublished before, or the record is an older copy. The path is cleaned up if it is one of
            // kubelet's own and no other volume is there.
            if !kubelet_paths::is_target(target) {
                return Ok(());
            }
            self.check_not_other_volumes(id, target)?;
            if self.is_other_volume_staged(id, &devices, target)? {
                let message = format!("{} belongs to another volume", target.as_path().display());
                return Err(Refusal::state(id, message));
            }
        } else if !self.is_surely_published(id, &devices, target, published)?
            && self.other_volume_at(id, target)?.is_some()
        {
            // Another volume is at the path. The volume of this call was never there, or is gone.
            record.published.remove(&path_key(target));
            return self.save_publication_removal(id, record, by);
        }
        // The volume is unstaged first. Until then a pod may use it.
        if by != Some(Mounter::Driver) && self.context.features.has(Feature::DeferFsOps) {
            let is_deferred = defer_fs_ops || by == Some(Mounter::Runtime);
            self.context.unstage_deferred(id, target, is_deferred)?;
        }
        mounts::unmount(&devices, published, target.as_path()).map_err(Refusal::node(id))?;
        self.context.clean_up_path(id, target)?;
        if record.published.remove(&path_key(target)).is_some() {
            self.save_publication_removal(id, record, by)?;
        }
        Ok(())
    }

    /// Saves a record from which a publication was removed. Only the record shows whether a publication that is left to
    /// kubelet exists, so then a failure is an error. Others are determined without the record.
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

    /// Returns whether the volume is certainly at the target path.
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

impl BlockDriver {
    /// Handles `NodeUnpublishVolume` for a volume that doesn't exist.
    pub(super) fn unpublish_unknown(
        &self,
        id: &str,
        target: &TargetPath,
        defer_fs_ops: bool,
    ) -> Result<(), Refusal> {
        let _guard = self.context.lock_target(id, target)?;
        let devices = self.loop_devices_of_unknown(id)?;
        self.check_not_other_volumes(id, target)?;
        if self.is_other_volume_staged(id, &devices, target)? {
            let message = format!(
                "{}: another driver's device is staged there for a container runtime; hint: find it with \
                 `runcrust crust list`",
                target.as_path().display()
            );
            return Err(Refusal::state(id, message));
        }
        if self.context.features.has(Feature::DeferFsOps) {
            self.context.unstage_deferred(id, target, defer_fs_ops)?;
        }
        self.clean_up_unknown(id, &devices, target)
    }

    /// Handles `NodeUnstageVolume` for a volume that doesn't exist.
    pub(super) fn unstage_unknown(&self, id: &str, staging: &TargetPath) -> Result<(), Refusal> {
        let _guard = self.context.lock_target(id, staging)?;
        let path = path_key(staging);
        for (other, record) in self.store.all()? {
            if record.is_some_and(|it| it.staged.contains_key(&path)) {
                let message = format!("{path} is the staging path of volume {other}");
                return Err(Refusal::state(id, message));
            }
        }
        let devices = self.loop_devices_of_unknown(id)?;
        self.clean_up_unknown(id, &devices, staging)
    }

    fn clean_up_unknown(
        &self,
        id: &str,
        devices: &[Device],
        path: &TargetPath,
    ) -> Result<(), Refusal> {
        mounts::unmount(devices, None, path.as_path()).map_err(Refusal::node(id))?;
        if kubelet_paths::directory(path, &self.context.settings.driver_name).is_some() {
            self.context.clean_up_path(id, path)?;
        }
        tracing::info!("volume {id}: does not exist; {path:?} has been cleaned up");
        Ok(())
    }

    /// Returns the loop devices whose image was unlinked, by the name of the image. Ids of other drivers have no
    /// images.
    fn loop_devices_of_unknown(&self, id: &str) -> Result<Vec<Device>, Refusal> {
        if is_id(id) {
            self.loop_devices(id)
        } else {
            Ok(Vec::new())
        }
    }
}
