//! `NodeStageVolume`, `NodeUnstageVolume`: attaches and detaches the loop device of a volume, and prepares its file
//! system. Nothing is mounted: the publish request decides who mounts the volume (KEP-2857).

use crust_proto::csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};

use crate::block::BlockDriver;
use crate::block::Capability;
use crate::block::driver::check_of_claim;
use crate::block::format::{self, FormatRequest, Fstype, Mkfs, NextStep};
use crate::block::record::Record;
use crate::capability::Parameters;
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_path, path_key};

impl BlockDriver {
    /// Handles `NodeStageVolume`.
    pub(crate) fn stage(
        &self,
        request: &NodeStageVolumeRequest,
    ) -> Result<NodeStageVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let staging = path_key(&parse_path(
            "staging_target_path",
            &request.staging_target_path,
        )?);
        let capability = request.volume_capability.as_ref();
        let usage =
            Capability::from_request("volume_capability", capability, &self.context.features)?;
        Parameters::from_volume_context(&request.volume_context)?;
        let mut record = self.record_of_claim(id)?;
        if self.loop_device(id)?.is_none() {
            // The entries are from before a reboot, or couldn't be removed on a full disk.
            record.staged.clear();
        }
        if let Some((path, staged)) = find_conflict(&record, &staging, &usage) {
            let message = format!(
                "it is staged at {path} with another volume_capability: {}",
                staged.describe()
            );
            return Err(if path == staging {
                Refusal::exists(id, message)
            } else {
                Refusal::state(id, message)
            });
        }
        let device = self.attach(id, &record)?;
        if let Some(mount) = &usage.mount {
            let image = self.images.path(id);
            let request = FormatRequest {
                device: &device,
                image: &image,
                fstype: mount.fstype,
                read_only: usage.is_read_only(),
            };
            self.prepare(id, &mut record, request)?;
        }
        record.staged.insert(staging, usage);
        self.store.save(id, &record)?;
        Ok(NodeStageVolumeResponse {})
    }

    /// Handles `NodeUnstageVolume`.
    pub(crate) fn unstage(
        &self,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let staging = parse_path("staging_target_path", &request.staging_target_path)?;
        let Some(mut record) = self.find_record(id)? else {
            self.unstage_unknown(id, &staging)?;
            return Ok(NodeUnstageVolumeResponse {});
        };
        check_of_claim(id)?;
        let staging = path_key(&staging);
        let is_last = record.staged.keys().all(|there| *there == staging);
        if is_last {
            self.check_unpublished(id, &record)?;
            if self.loop_device(id)?.is_some() {
                self.detach(id)?;
            }
        }
        if record.staged.remove(&staging).is_some() {
            self.save_removal(id, &record);
        }
        Ok(NodeUnstageVolumeResponse {})
    }

    /// Checks the volume's file system, or makes one if the volume is empty.
    pub(super) fn prepare(
        &self,
        id: &str,
        record: &mut Record,
        request: FormatRequest<'_>,
    ) -> Result<(), Refusal> {
        match format::inspect(request).map_err(Refusal::node(id))? {
            NextStep::Nothing => {}
            NextStep::Fsck(check) => check.run().map_err(Refusal::node(id))?,
            NextStep::Mkfs(_) if record.file_system.is_some() => {
                let message = format!(
                    "it had a file system, and {} is empty; hint: restore it from a backup, or delete the volume",
                    request.image.display()
                );
                return Err(Refusal::state(id, message));
            }
            NextStep::Mkfs(make) => {
                let replaced = self.replace(id, make);
                if replaced.is_err() {
                    // The volume is still empty. An error is ignored: the next attempt discards it as well.
                    let _ = self.images.discard_replacement(id);
                }
                replaced?;
                self.attach(id, record)?;
            }
        }
        let holds_it = |held: Fstype| request.fstype.mounts(held.name());
        if !record.file_system.is_some_and(holds_it) {
            record.file_system = Some(request.fstype);
        }
        Ok(())
    }

    /// Makes a file system in a new image, and replaces the empty image by it. No mkfs of an earlier driver is running
    /// any more: it holds the lock of the image, for which attaching the image waits.
    fn replace(&self, id: &str, mkfs: Mkfs<'_>) -> Result<(), Refusal> {
        let replacement = self.images.begin_replacement(id)?;
        mkfs.run(&replacement).map_err(Refusal::node(id))?;
        self.detach(id)?;
        Ok(self.images.commit_replacement(id)?)
    }
}

/// Returns an existing staging that conflicts with a request: another capability at the same path, or a file system
/// instead of a block device or vice versa at any path.
fn find_conflict<'r>(
    record: &'r Record,
    staging: &str,
    usage: &Capability,
) -> Option<(&'r str, &'r Capability)> {
    let mut staged = record.staged.iter();
    let conflict = staged.find(|(path, existing)| {
        let is_other_type = existing.mount.is_none() != usage.mount.is_none();
        is_other_type || (path.as_str() == staging && !existing.has_same_staging(usage))
    });
    conflict.map(|(path, existing)| (path.as_str(), existing))
}
