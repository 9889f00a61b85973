//! The records on the disk: one JSON file for each object, below the root directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crust_state::files::{Directory, FileError};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{RecordUpdate, Records};
use crate::objects::manifest::{self, DocumentError};
use crate::objects::name::{UidError, new_uid};
use crate::objects::{Kind, Name};

/// The records' directory, relative to the root directory.
const DIRECTORY: &str = "crustlet/claims";

/// The error of a record that can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    /// A file doesn't contain a record.
    #[error("{}: {reason}; hint: {CONTENTS_HINT}", path.display())]
    Contents { path: PathBuf, reason: String },
    /// No UID can be generated.
    #[error(transparent)]
    Uid(#[from] UidError),
}

/// The hint for a damaged record. A damaged record isn't skipped, because its claim would then get another volume.
const CONTENTS_HINT: &str = "restore the file, or remove it together with the volume; the record says which volume a claim has, and without the record the claim would get another volume";

impl From<(PathBuf, DocumentError)> for StoreError {
    fn from((path, error): (PathBuf, DocumentError)) -> Self {
        let reason = error.to_string();
        Self::Contents { path, reason }
    }
}

/// The records, in memory and on the disk.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Directory,
    records: Records,
}

impl Store {
    /// Reads all records below a root directory. Fails if one of them can't be read.
    pub(crate) fn open(root: &Path) -> Result<Self, StoreError> {
        let directory = Directory::create(&root.join(DIRECTORY))?;
        let mut records = Records::default();
        for file_name in directory.names()? {
            // The file is left from an interrupted write. Only crustlet writes to this directory.
            if file_name.starts_with('.') {
                directory.remove(&file_name)?;
                continue;
            }
            let Some(bytes) = directory.read_record(&file_name)? else {
                continue;
            };
            let path = directory.path().join(&file_name);
            let document: Value =
                serde_json::from_slice(&bytes).map_err(|error| StoreError::Contents {
                    path: path.clone(),
                    reason: error.to_string(),
                })?;
            let read = manifest::from_document(document).map_err(|error| (path, error))?;
            records.insert(read.kind, read.name, read.document);
        }
        Ok(Self { directory, records })
    }

    pub(crate) const fn records(&self) -> &Records {
        &self.records
    }

    /// Updates a record, and returns when it is on the disk. Returns false if nothing has changed.
    pub(crate) fn write(&mut self, update: &RecordUpdate) -> Result<bool, StoreError> {
        let uid = new_uid()?;
        let uid = || uid;
        let now = || humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let Some(record) = self.records.updated(update, uid, now) else {
            return Ok(false);
        };
        let RecordUpdate { kind, name, .. } = update;
        let text = format!("{record:#}\n");
        self.directory
            .write(&file_name(*kind, name), text.as_bytes())?;
        self.records.insert(*kind, name.clone(), record);
        Ok(true)
    }

    /// Removes the record of an object from memory and from the disk. A generated object is gone then, because it has
    /// no manifest.
    pub(crate) fn forget(&mut self, kind: Kind, name: &Name) -> Result<(), StoreError> {
        self.directory.remove(&file_name(kind, name))?;
        self.records.remove(kind, name);
        Ok(())
    }
}

/// Returns the name of a record's file. It is a digest because a namespace and a name together may be longer than a
/// file name can be.
fn file_name(kind: Kind, name: &Name) -> String {
    let digest = Sha256::digest(format!("{kind}/{name}"));
    format!("{}.json", hex::encode(digest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(name: &str, patch: Value) -> RecordUpdate {
        RecordUpdate::claim(&Name::new("default", name), patch)
    }

    #[test]
    fn records_are_read_again_after_a_restart() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Store::open(root.path()).unwrap();
        let long = "n".repeat(253);
        assert!(store.write(&claim("data", json!({}))).unwrap());
        let bound = claim("data", json!({"spec": {"volumeName": "pv-1"}}));
        assert!(store.write(&bound).unwrap());
        assert!(!store.write(&bound).unwrap(), "nothing has changed");
        store
            .write(&claim(&long, json!({"metadata": {"uid": "given"}})))
            .unwrap();
        let volume =
            RecordUpdate::volume("data", json!({"spec": {"capacity": {"storage": "1Gi"}}}));
        store.write(&volume).unwrap();
        let data = Name::new("default", "data");
        let uid = store.records().uid(&data).expect("a uid").to_owned();
        assert_eq!(uid.len(), 36);
        assert_eq!(
            store.records().uid(&Name::new("default", &long)),
            Some("given")
        );
        std::fs::write(root.path().join(DIRECTORY).join(".half"), "{").unwrap();
        let reopened = Store::open(root.path()).unwrap();
        assert_eq!(reopened.records(), store.records());
        let record = reopened.records().get(Kind::PersistentVolumeClaim, &data);
        assert_eq!(record.expect("a record")["spec"]["volumeName"], "pv-1");
        store.forget(Kind::PersistentVolumeClaim, &data).unwrap();
        store.forget(Kind::PersistentVolumeClaim, &data).unwrap();
        let reopened = Store::open(root.path()).unwrap();
        assert_eq!(reopened.records(), store.records());
        assert_eq!(reopened.records().uid(&data), None);
    }

    /// If the record were skipped, the claim would count as new, and its volume would be deleted as unclaimed.
    #[test]
    fn a_damaged_record_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Store::open(root.path()).unwrap();
        store.write(&claim("data", json!({}))).unwrap();
        let directory = root.path().join(DIRECTORY);
        let file_name = file_name(Kind::PersistentVolumeClaim, &Name::new("default", "data"));
        for text in ["", "{", "{}", "null"] {
            std::fs::write(directory.join(&file_name), text).unwrap();
            let error = Store::open(root.path()).unwrap_err().to_string();
            assert!(error.contains(&file_name), "{text}: {error}");
            assert!(error.contains("hint: restore the file"), "{error}");
        }
    }
}
