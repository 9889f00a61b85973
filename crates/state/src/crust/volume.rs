//! A staged volume and the files that the runtime keeps in its entries: its users, a pending growth, how much of its
//! target path existed.

use std::path::{Path, PathBuf};

use crust_blockfs::resize::Limits;

use super::entry::{Entry, EntryFormat, RESIZE, RUNTIME_CLI, ResizeRecord};
use super::error::EntryError;
use crate::info::{MOUNT_INFO, MountInfo};
use crate::record::{RECORD, Version, VolumeRecord};
use crate::target::{Digest, TARGET, TargetPath};

/// A staged volume: what was staged, and the entries where the runtime keeps its files.
#[derive(Debug)]
pub struct Volume {
    pub(super) target: TargetPath,
    pub(super) info: MountInfo,
    /// The given target path's entry, then that of its resolved form where there is one.
    pub(super) entries: Vec<Entry>,
}

impl Volume {
    /// The target path as it was given. Its digest is the volume's name in locks and records.
    #[must_use]
    pub fn target(&self) -> &TargetPath {
        &self.target
    }

    /// [`TargetPath::digest`] of the target path.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.target.digest()
    }

    /// Returns what was staged.
    #[must_use]
    pub fn info(&self) -> &MountInfo {
        &self.info
    }

    /// Whether it was staged for Kata Containers, and not in the crust directory.
    #[must_use]
    pub fn is_kata_layout(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| entry.layout == EntryFormat::Kata)
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

    /// Writes who uses it; a record without users is removed, and `runtime-cli` with it.
    pub fn write_record(&self, record: &VolumeRecord) -> Result<(), EntryError> {
        if record.users.is_empty() {
            return self.forget_users();
        }
        self.write(RECORD, &to_json(record)?)
    }

    /// Says who answers for the volume now that it is in use (KEP-2857: `runtime-cli`).
    pub fn publish_cli(&self, cli: &Path) -> Result<(), EntryError> {
        let mut line = cli.as_os_str().as_encoded_bytes().to_vec();
        line.push(b'\n');
        self.write(RUNTIME_CLI, &line)
    }

    /// Returns the program that answers for the volume; `None` while it isn't in use.
    pub fn runtime_cli(&self) -> Result<Option<PathBuf>, EntryError> {
        let entry = self.entries.first();
        Ok(entry.map_or(Ok(None), Entry::runtime_cli)?)
    }

    /// Removes the runtime's files: nobody uses the volume any more.
    pub fn forget_users(&self) -> Result<(), EntryError> {
        for entry in &self.entries {
            // The record last: without `runtime-cli` it still says that somebody was there.
            entry.directory.remove(RUNTIME_CLI)?;
            entry.directory.remove(RECORD)?;
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
        path: RECORD.into(),
        source,
    })
}

impl Volume {
    /// Returns the growth that the volume's mount has to carry out; `None` if there is none. A growth that was asked
    /// for another device doesn't count.
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

    /// Records a growth for the next mount, in place of an earlier one.
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

    /// Removes the pending growth: it was carried out, or won't be.
    pub fn forget_resize(&self) -> Result<(), EntryError> {
        // The given path's entry last: it is the one that is read.
        for entry in self.entries.iter().rev() {
            entry.directory.remove(RESIZE)?;
        }
        Ok(())
    }

    /// Records how much of the target path exists, if that is more than the record says. When a volume is used more may
    /// exist than when it was staged: drivers make the directory before or afterwards, and callers other than
    /// `crust_ops` may have recorded nothing.
    pub fn record_presence(&self) -> Result<(), EntryError> {
        let Ok(now) = self.target.presence() else {
            return Ok(());
        };
        // An entry of Kata's layout belongs to its driver.
        let own = self
            .entries
            .iter()
            .filter(|entry| entry.layout == EntryFormat::Crust);
        for entry in own {
            let before = entry.presence().ok().flatten();
            let is_more = before.is_none_or(|before| now.says_more_than(&before));
            if let (true, Ok(json)) = (is_more, serde_json::to_vec(&now)) {
                entry.directory.write(TARGET, &json)?;
            }
        }
        Ok(())
    }
}
