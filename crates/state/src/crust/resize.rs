//! Growth that waits for the volume's mount, in its entries.

use std::path::Path;

use super::entry::Entry;
use super::{EntryError, Volume};
use crate::files::{Directory, FileError};
use crate::record::Version;
use crate::resize::{RESIZE, ResizeRecord};
use crust_blockfs::resize::Limits;

impl Volume {
    /// The growth that is to be done when the volume is mounted; `None` if there is nothing to do.
    /// One that was asked for another device isn't this one's.
    pub fn pending_resize(&self) -> Result<Option<Limits>, EntryError> {
        Ok(self.own_resize()?.map(|record| record.limits))
    }

    /// Returns the reason why the last mount couldn't carry out the recorded growth; `None` if it didn't
    /// fail.
    pub fn failed_resize(&self) -> Result<Option<String>, EntryError> {
        Ok(self.own_resize()?.and_then(|record| record.failed))
    }

    fn own_resize(&self) -> Result<Option<ResizeRecord>, EntryError> {
        let entry = self.entries.first();
        let record = entry.map_or(Ok(None), Entry::resize)?;
        Ok(record.filter(|record| record.is_for(&self.info.device)))
    }

    /// Leaves a growth to the next mount, in place of an earlier one.
    pub fn record_resize(&self, limits: Limits) -> Result<(), EntryError> {
        self.write_resize(limits, None)
    }

    /// Records that a mount couldn't carry out the growth. The next mount tries again.
    pub fn record_failed_resize(&self, limits: Limits, why: String) -> Result<(), EntryError> {
        self.write_resize(limits, Some(why))
    }

    fn write_resize(&self, limits: Limits, failed: Option<String>) -> Result<(), EntryError> {
        let record = ResizeRecord {
            version: Version,
            device: Some(self.info.device.clone()),
            limits,
            failed,
        };
        let json = serde_json::to_vec(&record).map_err(|source| EntryError::Resize {
            path: RESIZE.into(),
            source,
        })?;
        self.write(RESIZE, &json)
    }

    /// The volume has grown, or won't.
    pub fn forget_resize(&self) -> Result<(), EntryError> {
        // The given path's entry last: it is the one that is read.
        for entry in self.entries.iter().rev() {
            entry.directory.remove(RESIZE)?;
        }
        Ok(())
    }
}

/// Removes from an entry the growth that was asked for another device. What can't be read says of
/// no device that it is its own: the mount refuses it.
pub(super) fn forget_of_others(entry: &Directory, device: &Path) -> Result<(), FileError> {
    let Ok(Some(bytes)) = entry.read(RESIZE) else {
        return Ok(());
    };
    match serde_json::from_slice::<ResizeRecord>(&bytes) {
        Ok(record) if record.device.as_deref() != Some(device) => entry.remove(RESIZE),
        _ => Ok(()),
    }
}
