//! A staged volume, and the files that the runtime keeps with it.

use std::path::{Path, PathBuf};

use super::entry::{Entry, Layout};
use super::{EntryError, RUNTIME_CLI};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::record::{RECORD, VolumeRecord};
use crate::target::{Digest, TargetPath};

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

    /// What was staged.
    #[must_use]
    pub fn info(&self) -> &MountInfo {
        &self.info
    }

    /// Whether it was staged for Kata Containers, and not in the crust directory.
    #[must_use]
    pub fn is_katas(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| entry.layout == Layout::Kata)
    }

    /// Where it is written what was staged.
    pub(super) fn info_path(&self) -> PathBuf {
        let entry = self.entries.first();
        entry.map_or_else(PathBuf::new, |entry| entry.path(MOUNT_INFO))
    }

    /// Who uses it; `None` if nobody does.
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

    /// Who answers for the volume; `None` as long as it isn't in use.
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
