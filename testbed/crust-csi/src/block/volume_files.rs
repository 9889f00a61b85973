//! Creates and deletes the record and the image of a volume, and reserves space for it.

use std::sync::PoisonError;

use super::BlockDriver;
use super::images::{FileSystemSpace, ImageError};
use super::record::{Lifecycle, Record};
use crate::inline_volume::is_inline_id;
use crate::refusal::Refusal;
use crate::store::is_id;

/// The space for volumes, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    /// The bytes that images occupy already, and those that are free.
    pub(crate) bytes: u64,
    /// The sum of the volumes' sizes.
    pub(crate) reserved: u64,
    /// The part of it that inline volumes have.
    reserved_inline: u64,
    /// Whether the file system is mounted read-only.
    pub(crate) is_read_only: bool,
}

impl BlockDriver {
    /// Creates the record and the empty image of a new volume. Returns the record.
    pub(crate) fn create_volume_files(
        &self,
        id: &str,
        mut record: Record,
    ) -> Result<Record, Refusal> {
        let size = record.capacity;
        self.reserve(id, size, || {
            self.store.save(id, &record).map_err(Refusal::from)
        })?;
        record.lifecycle = Lifecycle::Ready;
        let made = self.images.create(id, size).map_err(Refusal::from);
        let made = made.and_then(|()| Ok(self.store.save(id, &record)?));
        if made.is_err() {
            // Frees the reserved space. An error is ignored: the driver retries at its next start.
            let _ = self.remove_volume(id);
        }
        made.map(|()| record)
    }

    /// Deletes the image and the record of a volume that isn't attached. A driver that is killed meanwhile continues at
    /// its next start.
    pub(crate) fn delete_volume_files(&self, id: &str, mut record: Record) -> Result<(), Refusal> {
        record.lifecycle = Lifecycle::Deleting;
        if let Err(error) = self.store.save(id, &record) {
            // The disk can be full, and removing the image frees space. If the driver is killed before the record is
            // removed, the record has no image, and the volume can't be used.
            tracing::warn!("{}", crust_state::error_message(&error));
        }
        self.remove_volume(id)
    }

    /// Removes the image and the record of a volume that has no data, or whose data is no longer needed.
    pub(crate) fn remove_volume(&self, id: &str) -> Result<(), Refusal> {
        self.images.remove(id)?;
        Ok(self.store.remove(id)?)
    }

    /// Fails if there is an image without a record, because it may contain data.
    pub(crate) fn check_no_image(&self, id: &str) -> Result<(), Refusal> {
        if !is_id(id) {
            return Ok(());
        }
        match self.images.size(id) {
            Err(ImageError::Missing(_)) => Ok(()),
            Ok(_) => Err(ImageError::NoRecord(self.images.path(id)).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Calls `save` if enough bytes are available for a volume. No other call reserves space meanwhile.
    pub(crate) fn reserve(
        &self,
        id: &str,
        bytes: u64,
        save: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let _guard = self
            .reservation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let space = self.space()?;
        check_available(bytes, self.available_in(space), "volumes", "--capacity")?;
        if is_inline_id(id)
            && let Some(capacity) = self.context.settings.inline_capacity
        {
            let available = capacity.saturating_sub(space.reserved_inline);
            check_available(bytes, available, "inline volumes", "--inline-capacity")?;
        }
        save()
    }

    /// Returns the number of bytes that are left for new volumes. The full sizes of the existing volumes are
    /// subtracted, not the space that their images occupy: images are sparse.
    pub(crate) fn available(&self) -> Result<u64, Refusal> {
        Ok(self.available_in(self.space()?))
    }

    fn available_in(&self, space: Space) -> u64 {
        let capacity = self.context.settings.capacity.unwrap_or(u64::MAX);
        capacity.min(space.bytes).saturating_sub(space.reserved)
    }

    /// Returns the space for all volumes, regardless of `--capacity`, and how much of it is reserved.
    pub(crate) fn space(&self) -> Result<Space, Refusal> {
        let FileSystemSpace {
            bytes,
            is_read_only,
        } = self.images.space()?;
        let (mut reserved, mut reserved_inline) = (0_u64, 0_u64);
        for (id, record) in self.store.all()? {
            let size = self.images.size(&id).unwrap_or_default();
            let size = record.map_or(size, |record| record.capacity.max(size));
            reserved = reserved.saturating_add(size);
            if is_inline_id(&id) {
                reserved_inline = reserved_inline.saturating_add(size);
            }
        }
        Ok(Space {
            bytes,
            reserved,
            reserved_inline,
            is_read_only,
        })
    }
}

/// Fails if fewer than the requested bytes are available. `volumes` and `flag` are for the message.
fn check_available(
    requested: u64,
    available: u64,
    volumes: &'static str,
    flag: &'static str,
) -> Result<(), Refusal> {
    if requested <= available {
        return Ok(());
    }
    Err(Refusal::OutOfCapacity {
        requested,
        available,
        volumes,
        flag,
    })
}
