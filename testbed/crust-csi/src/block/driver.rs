//! The state that the calls of the driver for block volumes share, which are the records and images of volumes.

use std::sync::Mutex;

use crust_blockfs::device::Device;
use crust_blockfs::loops::{self, LoopDevice};
use crust_state::files::Directory;

use super::images::{ImageError, Images};
use super::record::{Lifecycle, Record};
use crate::driver_context::{DriverContext, StartError};
use crate::inline_volume::is_inline_id;
use crate::refusal::Refusal;
use crate::store::Store;

/// The driver for block volumes, which are image files on loop devices.
#[derive(Debug)]
pub(crate) struct BlockDriver {
    pub(crate) context: DriverContext,
    pub(crate) store: Store<Record>,
    pub(crate) images: Images,
    /// Held while space is checked and reserved for a volume.
    pub(crate) reservation: Mutex<()>,
}

impl BlockDriver {
    /// Opens the data directory, and cleans up after an earlier driver.
    pub(crate) fn new(context: DriverContext) -> Result<Self, StartError> {
        let data = Directory::create(&context.settings.data_dir)?;
        let driver = Self {
            store: Store::open(&context.settings.data_dir)?,
            images: Images::open(&data)?,
            reservation: Mutex::new(()),
            context,
        };
        driver.clean_up_interrupted()?;
        Ok(driver)
    }

    /// Removes volumes and file systems whose creation or deletion was interrupted. They have no data, and the caller
    /// will repeat the call. Also removes inline volumes that are not published, in case nobody repeats the call.
    fn clean_up_interrupted(&self) -> Result<(), StartError> {
        if let Err(error) = self.store.remove_leftovers() {
            tracing::warn!("{}", crust_state::error_message(&error));
        }
        let records = self.store.all();
        for (id, record) in records.map_err(|error| StartError::Volume(error.into()))? {
            let cleared = match record {
                Some(record) if record.lifecycle != Lifecycle::Ready => self.remove_volume(&id),
                Some(record) if is_inline_id(&id) && record.published.is_empty() => {
                    self.remove_inline(&id, &record)
                }
                _ => self.images.discard_replacement(&id).map_err(Refusal::from),
            };
            if let Err(error) = cleared {
                // The other volumes must be usable nevertheless.
                tracing::warn!("volume {id}: {}", crust_state::error_message(&error));
            }
        }
        Ok(())
    }

    /// Returns the record of a volume. `None` if there is no such volume, or if it is being created or deleted.
    pub(crate) fn find_record(&self, id: &str) -> Result<Option<Record>, Refusal> {
        let record = self.store.load(id)?;
        let ready = record.filter(|record| record.lifecycle == Lifecycle::Ready);
        Ok(ready.map(|record| self.with_actual_capacity(id, record)))
    }

    /// Returns the record of a volume that must exist.
    pub(crate) fn record(&self, id: &str) -> Result<Record, Refusal> {
        self.find_record(id)?
            .ok_or_else(|| Refusal::NoVolume(id.to_owned()))
    }

    /// Returns the record of a volume that must exist, in a call that orchestrators only make for volumes of claims.
    pub(crate) fn record_of_claim(&self, id: &str) -> Result<Record, Refusal> {
        let record = self.record(id)?;
        check_of_claim(id)?;
        Ok(record)
    }

    /// Returns the record with the image's size, if that is larger. An image is expanded before its record is written,
    /// and the write may have failed. The file system may use all of the image by now.
    pub(crate) fn with_actual_capacity(&self, id: &str, mut record: Record) -> Record {
        let size = self.images.size(id).unwrap_or_default();
        record.capacity = record.capacity.max(size);
        record
    }

    /// Returns the loop device of a volume's image, if the image is attached.
    pub(crate) fn loop_device(&self, id: &str) -> Result<Option<LoopDevice>, Refusal> {
        match self.images.size(id) {
            // A missing image is not looked up: no file with its name is attached.
            Err(ImageError::Missing(_)) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(_) => loops::find(&self.images.path(id)).map_err(Refusal::node(id)),
        }
    }

    /// Opens the loop device of a volume's image, if the image is attached.
    pub(crate) fn device(&self, id: &str) -> Result<Option<Device>, Refusal> {
        let Some(attached) = self.loop_device(id)? else {
            return Ok(None);
        };
        Device::open(&attached.device)
            .map(Some)
            .map_err(Refusal::node(id))
    }

    /// Fails if the volume's image was [truncated](Self::describe_truncation).
    pub(crate) fn check_not_truncated(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        let size = self.images.size(id)?;
        match self.describe_truncation(id, record, size) {
            Some(message) => Err(Refusal::state(id, message)),
            None => Ok(()),
        }
    }

    /// Returns a message if an image of `size` bytes is smaller than its volume, because then it was truncated. A
    /// larger image is normal: its expansion has begun.
    pub(crate) fn describe_truncation(
        &self,
        id: &str,
        record: &Record,
        size: u64,
    ) -> Option<String> {
        (size < record.capacity).then(|| {
            format!(
                "{} has {size} bytes, but must have {}: it was truncated; hint: restore it from a backup",
                self.images.path(id).display(),
                record.capacity
            )
        })
    }
}

/// Fails if an id is that of an inline volume, in a call that orchestrators only make for volumes of claims.
pub(crate) fn check_of_claim(id: &str) -> Result<(), Refusal> {
    if !is_inline_id(id) {
        return Ok(());
    }
    let message = "it is in the spec of a pod, with which it is created and removed, and has no call other than \
                   publish, unpublish, statistics and health; hint: use a PersistentVolumeClaim";
    Err(Refusal::state(id, message))
}
