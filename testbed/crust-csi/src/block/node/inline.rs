//! Inline volumes: `NodePublishVolume` creates the volume before it publishes it, and `NodeUnpublishVolume` removes it.
//!
//! kubelet calls nothing else for them, and doesn't even call `NodeUnpublishVolume` if the publish has failed for
//! certain. So each failure ends in one of these states:
//!
//! | state | the volume is removed by |
//! |---|---|
//! | the publish has failed for certain, and no pod has used the volume | the call itself |
//! | the publish may have succeeded, or the driver was killed | `NodeUnpublishVolume`, maybe after another publish |
//! | the record has no publication | the next start of the driver as well |
//!
//! Nothing is removed as long as the volume is published, or its device is in use.

use std::slice;

use crust_proto::csi::v1::{NodePublishVolumeRequest, NodePublishVolumeResponse};
use crust_state::TargetPath;
use crust_state::error_message;

use crate::block::BlockDriver;
use crate::block::Publication;
use crate::block::format::{FormatRequest, Fstype};
use crate::block::inline_attributes::InlineAttributes;
use crate::block::record::{Lifecycle, Record};
use crate::capability::Parameters;
use crate::inline_volume::{self, is_inline_id};
use crate::refusal::Refusal;
use crate::requests::path_key;

/// A volume as the spec of a pod asks for it.
struct RequestedVolume<'r> {
    id: &'r str,
    /// `namespace/name` of the pod.
    pod: String,
    /// The size in bytes.
    size: u64,
    parameters: Parameters,
    fstype: Fstype,
}

impl BlockDriver {
    /// Handles `NodePublishVolume` for an inline volume.
    pub(super) fn publish_inline(
        &self,
        request: &NodePublishVolumeRequest,
        target: &TargetPath,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        if !is_inline_id(id) {
            let reason = "csi.storage.k8s.io/ephemeral is true, but the id is not one that kubelet generates for a \
                          volume in the spec of a pod: csi- and 64 hex digits";
            return Err(Refusal::field("volume_id", reason));
        }
        let attributes = InlineAttributes::from_volume_context(&request.volume_context)?;
        let requested = self.requested_publication(request, &attributes.parameters)?;
        let Some(mount) = &requested.usage.mount else {
            let reason = "block: a volume in the spec of a pod has a file system";
            return Err(Refusal::field("volume_capability", reason));
        };
        let volume = RequestedVolume {
            id,
            pod: inline_volume::pod(&request.volume_context),
            size: attributes
                .size_range()
                .new_size(slice::from_ref(&requested.usage))?,
            parameters: attributes.parameters,
            fstype: mount.fstype,
        };
        let _guard = self.context.lock_target(id, target)?;
        let published = self.create_and_publish(&volume, target, &requested);
        if published.as_ref().is_err_and(Refusal::is_final)
            && let Err(error) = self.discard_unused(id, target)
        {
            tracing::warn!("volume {id}: not removed: {}", error_message(&error));
        }
        published
    }

    fn create_and_publish(
        &self,
        volume: &RequestedVolume<'_>,
        target: &TargetPath,
        requested: &Publication,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let id = volume.id;
        let mut record = self.find_or_create(volume)?;
        let device = self.attach(id, &record)?;
        let existing = self.existing_publications(id, &record)?;
        let is_published = !existing.is_empty();
        let key = path_key(target);
        if let Some((path, _)) = existing.iter().find(|(path, _)| *path != key) {
            let message = format!(
                "it is published at {path}, and a volume in the spec of a pod has one target path"
            );
            return Err(Refusal::state(id, message));
        }
        if !is_published {
            // Publications at other paths are from before a reboot.
            record.published.retain(|path, _| *path == key);
            let format = FormatRequest {
                device: &device,
                image: &self.images.path(id),
                fstype: volume.fstype,
                // The file system has to be made even if the pod only reads it.
                read_only: false,
            };
            self.prepare(id, &mut record, format)?;
        }
        let response = self.publish_at(id, &mut record, target, requested)?;
        if !record.was_published {
            record.was_published = true;
            self.store.save(id, &record)?;
        }
        Ok(response)
    }

    /// Returns the record of an inline volume. Creates the volume if it doesn't exist.
    fn find_or_create(&self, volume: &RequestedVolume<'_>) -> Result<Record, Refusal> {
        let RequestedVolume { id, pod, size, .. } = volume;
        match self.store.load(id)? {
            Some(record) if record.lifecycle == Lifecycle::Ready => {
                if record.capacity != *size || record.parameters != volume.parameters {
                    let message = format!(
                        "it exists with {} bytes, and another size or other volumeAttributes are requested; hint: \
                         recreate the pod",
                        record.capacity
                    );
                    return Err(Refusal::exists(id, message));
                }
                return Ok(record);
            }
            // A creation or deletion that was interrupted. The volume has no data, and is created anew.
            Some(_) => self.remove_volume(id)?,
            None => self.check_no_image(id)?,
        }
        let record = Record::new(pod, *size, volume.parameters.clone());
        let record = self.create_volume_files(id, record)?;
        tracing::info!("volume {id}: created for pod {pod:?}, {size} bytes");
        Ok(record)
    }

    /// Removes a volume whose publish has failed for certain, unless a pod has used it before. After a reboot, kubelet
    /// publishes the volumes of its pods again, and they have data.
    fn discard_unused(&self, id: &str, target: &TargetPath) -> Result<(), Refusal> {
        let Some(mut record) = self.find_record(id)? else {
            return Ok(());
        };
        if record.was_published {
            return Ok(());
        }
        if record.published.contains_key(&path_key(target)) {
            self.unpublish_at(id, &mut record, target, false)?;
        }
        if record.published.is_empty() {
            self.remove_inline(id, &record)?;
        }
        Ok(())
    }

    /// Removes an inline volume that was unpublished. Its record must have no publication.
    pub(super) fn remove_unpublished(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        if self.loop_device(id)?.is_some() {
            self.detach(id)?;
        }
        self.remove_inline(id, record)
    }

    /// Removes an inline volume that no pod uses. Its record must have no publication. Fails if its device is in use
    /// nevertheless.
    pub(crate) fn remove_inline(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        if self.loop_device(id)?.is_some() {
            self.detach_unused(id)?;
        }
        self.delete_volume_files(id, record.clone())?;
        tracing::info!(
            "volume {id}: removed; it was created for pod {:?}",
            record.name
        );
        Ok(())
    }

    /// Removes an inline volume whose creation or removal was interrupted. It has no data, and no device.
    pub(super) fn remove_interrupted(&self, id: &str) -> Result<(), Refusal> {
        if is_inline_id(id) && self.store.load(id)?.is_some() {
            self.remove_volume(id)?;
        }
        Ok(())
    }
}
