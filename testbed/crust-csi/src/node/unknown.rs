//! A volume that isn't there any more, and that kubelet still has to give back: it was deleted while its pod was
//! being removed by force, or the node was down.
//!
//! CSI has `NOT_FOUND` for it, after which kubelet asks again for ever, and the pod's directory stays. What stands
//! at the path says what to do instead. What is mounted there and isn't provably this volume's stays, and is an
//! error.

use crust_blockfs::device::Device;
use crust_state::TargetPath;

use crate::driver::{Driver, key};
use crate::features::Feature;
use crate::kubelet;
use crate::mounts;
use crate::refusal::Refusal;
use crate::store::is_id;

impl Driver {
    /// `NodeUnpublishVolume` of a volume that there isn't.
    pub(super) fn unpublish_unknown(
        &self,
        id: &str,
        target: &TargetPath,
        defer_fs_ops: bool,
    ) -> Result<(), Refusal> {
        let _turn = self.turn_at(id, target)?;
        let devices = self.devices_of_unknown(id)?;
        self.check_nobody_elses(id, target)?;
        if self.is_another_staged(id, &devices, target)? {
            let what = format!(
                "{}: another driver's device is staged there for a container runtime; hint: `runcrust crust list` \
                 shows which",
                target.as_path().display()
            );
            return Err(Refusal::state(id, what));
        }
        if self.features.has(Feature::DeferFsOps) {
            self.unstage_for_the_runtime(id, target, defer_fs_ops)?;
        }
        self.give_back_unknown(id, &devices, target)
    }

    /// `NodeUnstageVolume` of a volume that there isn't.
    pub(super) fn unstage_unknown(&self, id: &str, staging: &TargetPath) -> Result<(), Refusal> {
        let _turn = self.turn_at(id, staging)?;
        let path = key(staging);
        for (other, record) in self.store.all()? {
            if record.is_some_and(|it| it.staged.contains_key(&path)) {
                let what = format!("{path} is the staging path of volume {other}");
                return Err(Refusal::state(id, what));
            }
        }
        let devices = self.devices_of_unknown(id)?;
        self.give_back_unknown(id, &devices, staging)
    }

    fn give_back_unknown(
        &self,
        id: &str,
        devices: &[Device],
        place: &TargetPath,
    ) -> Result<(), Refusal> {
        mounts::unmount(devices, None, place.as_path()).map_err(Refusal::node(id))?;
        if kubelet::directory(place, &self.settings.driver_name).is_some() {
            self.clear(id, place)?;
        }
        tracing::info!("volume {id}: there is none, and nothing of it is left at {place:?}");
        Ok(())
    }

    /// Loop devices that still show the volume's image, which was unlinked. Other drivers' ids are no names of images.
    fn devices_of_unknown(&self, id: &str) -> Result<Vec<Device>, Refusal> {
        if is_id(id) {
            self.devices(id)
        } else {
            Ok(Vec::new())
        }
    }
}
