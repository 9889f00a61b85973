//! A staged volume, and the files that runcrust keeps in its entries: the record of users, a pending resize, and the
//! presence of the target path.

use std::path::{Path, PathBuf};

use crust_blockfs::resize::SizeLimits;

use super::entry::{Entry, EntryFormat, RESIZE_FILE, RUNTIME_CLI, ResizeRecord};
use super::error::EntryError;
use crate::info::{MOUNT_INFO, MountInfo};
use crate::record::{RECORD_FILE, Version, VolumeRecord};
use crate::target::{Digest, TARGET_FILE, TargetPath};

/// A staged volume, with its entries open.
#[derive(Debug)]
pub struct Volume {
    pub(super) target: TargetPath,
    pub(super) info: MountInfo,
    /// The entry of the target path, then that of the resolved path if it differs.
    pub(super) entries: Vec<Entry>,
}

impl Volume {
    /// Returns the target path. Its digest is the name of the volume's lock.
    #[must_use]
    pub fn target(&self) -> &TargetPath {
        &self.target
    }

    /// Returns the digest of the target path.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.target.digest()
    }

    /// Returns the staged metadata.
    #[must_use]
    pub fn info(&self) -> &MountInfo {
        &self.info
    }

    /// Returns whether the volume was staged for Kata Containers, and not in the crust directory.
    #[must_use]
    pub fn is_kata_layout(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| entry.format == EntryFormat::Kata)
    }

    /// Returns the path of the volume's `mountInfo.json`.
    pub(super) fn info_path(&self) -> PathBuf {
        let entry = self.entries.first();
        entry.map_or_else(PathBuf::new, |entry| entry.path(MOUNT_INFO))
    }

    /// Returns the record of users; `None` if there are none.
    pub fn record(&self) -> Result<Option<VolumeRecord>, EntryError> {
        self.entries.first().map_or(Ok(None), Entry::record)
    }

    /// Writes the record of users to all entries. If the record has no users, removes it and `runtime-cli`.
    pub fn write_record(&self, record: &VolumeRecord) -> Result<(), EntryError> {
        if record.users.is_empty() {
            return self.clear_users();
        }
        self.write(RECORD_FILE, &to_json(record)?)
    }

    /// Writes the path of the program to call about the volume while it is in use (KEP-2857: `runtime-cli`).
    pub fn write_runtime_cli(&self, cli: &Path) -> Result<(), EntryError> {
        let mut line = cli.as_os_str().as_encoded_bytes().to_vec();
        line.push(b'\n');
        self.write(RUNTIME_CLI, &line)
    }

    /// Returns the program to call about the volume; `None` if the volume isn't in use.
    pub fn runtime_cli(&self) -> Result<Option<PathBuf>, EntryError> {
        let entry = self.entries.first();
        Ok(entry.map_or(Ok(None), Entry::runtime_cli)?)
    }

    /// Removes the record of users and `runtime-cli`, because the volume isn't in use any more.
    pub fn clear_users(&self) -> Result<(), EntryError> {
        for entry in &self.entries {
            // The record is removed last: after a crash in between, it still shows that the volume was in use.
            entry.directory.remove(RUNTIME_CLI)?;
            entry.directory.remove(RECORD_FILE)?;
        }
        Ok(())
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<(), EntryError> {
        for entry in &self.entries {
            if entry.directory.read_record(name)?.as_deref() != Some(content) {
                entry.directory.write(name, content)?;
            }
        }
        Ok(())
    }
}

fn to_json(record: &VolumeRecord) -> Result<Vec<u8>, EntryError> {
    let json = serde_json::to_vec(record);
    json.map_err(|source| EntryError::Record {
        path: RECORD_FILE.into(),
        source,
    })
}

impl Volume {
    /// Returns the size limits of the resize that the next mount has to carry out; `None` if none is pending. A resize
    /// that was requested for another device is ignored.
    pub fn pending_resize(&self) -> Result<Option<SizeLimits>, EntryError> {
        Ok(self.resize_of_device()?.map(|record| record.limits))
    }

    /// Returns the error with which the last mount failed to carry out the pending resize; `None` if it didn't fail.
    pub fn failed_resize(&self) -> Result<Option<String>, EntryError> {
        Ok(self.resize_of_device()?.and_then(|record| record.failed))
    }

    fn resize_of_device(&self) -> Result<Option<ResizeRecord>, EntryError> {
        let entry = self.entries.first();
        let record = entry.map_or(Ok(None), Entry::resize)?;
        Ok(record.filter(|record| record.is_for(&self.info.device)))
    }

    /// Records a resize for the next mount. Replaces an earlier one.
    pub fn record_resize(&self, limits: SizeLimits) -> Result<(), EntryError> {
        self.write_resize(limits, None)
    }

    /// Records that a mount failed to carry out the resize. The next mount retries.
    pub fn record_failed_resize(
        &self,
        limits: SizeLimits,
        error: String,
    ) -> Result<(), EntryError> {
        self.write_resize(limits, Some(error))
    }

    fn write_resize(&self, limits: SizeLimits, failed: Option<String>) -> Result<(), EntryError> {
        let record = ResizeRecord {
            version: Version,
            device: Some(self.info.device.clone()),
            limits,
            failed,
        };
        let json = serde_json::to_vec(&record).map_err(|source| EntryError::Resize {
            path: RESIZE_FILE.into(),
            source,
        })?;
        self.write(RESIZE_FILE, &json)
    }

    /// Removes the pending resize, because it was carried out or withdrawn.
    pub fn clear_resize(&self) -> Result<(), EntryError> {
        // The file in the first entry is removed last, because it is the one that is read.
        for entry in self.entries.iter().rev() {
            entry.directory.remove(RESIZE_FILE)?;
        }
        Ok(())
    }

    /// Records which part of the target path exists now, unless the record is as good already. More of the path may
    /// exist when the volume is used than when it was staged, because some drivers create the directory after staging.
    /// Stagers other than `crust_ops` may have recorded nothing.
    pub fn record_presence(&self) -> Result<(), EntryError> {
        let Ok(now) = self.target.presence() else {
            return Ok(());
        };
        // Kata's entries belong to their drivers.
        let crust_entries = self
            .entries
            .iter()
            .filter(|entry| entry.format == EntryFormat::Crust);
        for entry in crust_entries {
            let recorded = entry.presence().ok().flatten();
            let is_better = recorded.is_none_or(|recorded| now.supersedes(&recorded));
            if let (true, Ok(json)) = (is_better, serde_json::to_vec(&now)) {
                entry.directory.write(TARGET_FILE, &json)?;
            }
        }
        Ok(())
    }
}
