//! `NodeStageVolume`, `NodeUnstageVolume`: a loop device, with a file system on it that is sound. Nothing is
//! mounted yet: who does that is up to the publication (KEP-2857).

use crust_proto::csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};

use crate::capability::{Capability, Parameters};
use crate::driver::{Driver, check_present, parse_path, path_key};
use crate::format::{self, FormatRequest, Fstype, Mkfs, NextStep};
use crate::refusal::Refusal;
use crate::store::Record;

impl Driver {
    /// `NodeStageVolume`.
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
        let usage = Capability::from_request("volume_capability", capability, &self.features)?;
        Parameters::from_volume_context(&request.volume_context)?;
        let mut record = self.record(id)?;
        if self.loop_device(id)?.is_none() {
            // What a boot has left, or a full disk.
            record.staged.clear();
        }
        if let Some((there, staged)) = conflicting(&record, &staging, &usage) {
            let what = format!(
                "it is staged at {there} with another volume_capability: {}",
                staged.describe()
            );
            return Err(if there == staging {
                Refusal::exists(id, what)
            } else {
                Refusal::state(id, what)
            });
        }
        let device = self.attach(id, &record)?;
        if let Some(mount) = &usage.mount {
            let image = self.images.path(id);
            let wanted = FormatRequest {
                device: &device,
                image: &image,
                fstype: mount.fstype,
                read_only: usage.is_read_only(),
            };
            self.prepare(id, &mut record, wanted)?;
        }
        record.staged.insert(staging, usage);
        self.store.save(id, &record)?;
        Ok(NodeStageVolumeResponse {})
    }

    /// `NodeUnstageVolume`.
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

    /// Has a sound file system on the volume.
    fn prepare(
        &self,
        id: &str,
        record: &mut Record,
        wanted: FormatRequest<'_>,
    ) -> Result<(), Refusal> {
        match format::inspect(wanted).map_err(Refusal::node(id))? {
            NextStep::Nothing => {}
            NextStep::Fsck(check) => check.run().map_err(Refusal::node(id))?,
            NextStep::Mkfs(_) if record.file_system.is_some() => {
                let what = format!(
                    "it had a file system, and {} is empty; hint: bring it back from a backup, or delete the \
                     volume",
                    wanted.image.display()
                );
                return Err(Refusal::state(id, what));
            }
            NextStep::Mkfs(make) => {
                let replaced = self.replace(id, make);
                if replaced.is_err() {
                    // It is empty as it was; the error that counts is the first.
                    let _ = self.images.discard_replacement(id);
                }
                replaced?;
                self.attach(id, record)?;
            }
        }
        let holds_it = |held: Fstype| wanted.fstype.mounts(held.name());
        if !record.file_system.is_some_and(holds_it) {
            record.file_system = Some(wanted.fstype);
        }
        Ok(())
    }

    /// Has another image, with a file system, take the empty one's place. Whoever was making one before has ended:
    /// to attach the image waits for its lock, which mkfs has.
    fn replace(&self, id: &str, make: Mkfs<'_>) -> Result<(), Refusal> {
        let beside = self.images.begin_replacement(id)?;
        make.run(&beside).map_err(Refusal::node(id))?;
        self.detach(id)?;
        Ok(self.images.commit_replacement(id)?)
    }
}

/// A staging that is another than the one asked for: at the same path, or as something else.
fn conflicting<'r>(
    record: &'r Record,
    staging: &str,
    usage: &Capability,
) -> Option<(&'r str, &'r Capability)> {
    let mut staged = record.staged.iter();
    let found = staged.find(|(path, there)| {
        let is_other_kind = there.mount.is_none() != usage.mount.is_none();
        is_other_kind || (path.as_str() == staging && !there.has_same_staging(usage))
    });
    found.map(|(path, there)| (path.as_str(), there))
}
