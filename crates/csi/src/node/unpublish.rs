//! `NodeUnpublishVolume`: the pod has ended.

use crust_proto::csi::v1::{NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse};
use crust_state::TargetPath;

use crate::clear::{clear, is_kubelets};
use crate::driver::{Driver, key, path, required};
use crate::features::Feature;
use crate::mounts;
use crate::refusal::Refusal;
use crate::store::By;

impl Driver {
    /// `NodeUnpublishVolume`.
    pub(crate) fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        required("volume_id", id)?;
        let target = path("target_path", &request.target_path)?;
        let mut record = self.record(id)?;
        let devices = self.devices(id)?;
        let published = record.published.get(&key(&target));
        let by = published.map(|publication| publication.by);
        if published.is_none() {
            // It was given back before, or its record is an older copy: kubelet's own paths are looked at, and
            // none that another volume has.
            if !is_kubelets(&target) {
                return Ok(NodeUnpublishVolumeResponse {});
            }
            self.check_nobody_elses(id, &target)?;
            if self.is_another_staged(id, &devices, &target)? {
                let what = format!("{} is another volume's", target.as_path().display());
                return Err(Refusal::state(id, what));
            }
        } else if self.others(id, &target)?.is_some() {
            // This one never was there, or isn't any more.
            record.published.remove(&key(&target));
            self.store.save(id, &record)?;
            return Ok(NodeUnpublishVolumeResponse {});
        }
        // The runtime goes first: until then a pod may still use it.
        if self.is_deferred(id, &target, by, request.defer_fs_ops)? {
            let unstaged = self.ops.unstage(&target);
            unstaged.map_err(|status| Refusal::ops(id, status))?;
        }
        mounts::unmount(&devices, published, target.as_path()).map_err(Refusal::node(id))?;
        let quarantine = self.quarantine(&target);
        let moved = clear(&target, quarantine.as_deref()).map_err(Refusal::node(id))?;
        if let Some(moved) = moved {
            tracing::warn!(
                "volume {id}: {}: somebody has written files there, on the host; they are in {} now; hint: \
                 did the pod run under a handler without runcrust?",
                target.as_path().display(),
                moved.display(),
            );
        }
        if record.published.remove(&key(&target)).is_some() {
            if by == Some(By::Kubelet) {
                // Of those the record alone is believed.
                self.store.save(id, &record)?;
            } else {
                self.save_less(id, &record);
            }
        }
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Whether `crust_ops` has to be told. kubelets that don't know of deferral don't say so: the crust
    /// directory does.
    pub(super) fn is_deferred(
        &self,
        id: &str,
        target: &TargetPath,
        by: Option<By>,
        said: bool,
    ) -> Result<bool, Refusal> {
        if !self.features.has(Feature::DeferFsOps) {
            return Ok(false);
        }
        Ok(said || by == Some(By::Runtime) || self.is_staged_for_a_runtime(id, target)?)
    }
}
