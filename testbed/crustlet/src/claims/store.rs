//! The records on the disk: one file for each below the root directory, in the object's own JSON.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crust_state::files::{Directory, FileError};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Records, Write};
use crate::objects::manifest::{self, DocumentError};
use crate::objects::name::{UidError, new_uid};
use crate::objects::{Kind, Name};

/// Below the root directory.
const DIRECTORY: &str = "crustlet/claims";

/// A record can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that has no object.
    #[error("{}: {reason}; hint: {KEPT}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// The flaw.
        reason: String,
    },
    /// The kernel gives none.
    #[error(transparent)]
    Uid(#[from] UidError),
}

/// The reason for which no record is skipped.
const KEPT: &str = "it says which claim has which volume, and without it the claim would get another; put it back as it was, or remove it together with that volume";

impl From<(PathBuf, DocumentError)> for StoreError {
    fn from((path, error): (PathBuf, DocumentError)) -> Self {
        let reason = error.to_string();
        Self::Contents { path, reason }
    }
}

/// The records, and where they are kept.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Directory,
    records: Records,
}

impl Store {
    /// Those below a root directory.
    pub(crate) fn open(root: &Path) -> Result<Self, StoreError> {
        let directory = Directory::create(&root.join(DIRECTORY))?;
        let mut records = Records::default();
        for file in directory.names()? {
            // Half a write that was interrupted. Nobody else writes here.
            if file.starts_with('.') {
                directory.remove(&file)?;
                continue;
            }
            let Some(bytes) = directory.read_record(&file)? else {
                continue;
            };
            let path = directory.path().join(&file);
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

    /// Returns the records.
    pub(crate) const fn records(&self) -> &Records {
        &self.records
    }

    /// Writes a record, which is on the disk when this returns. Returns false, and writes nothing, if it is there
    /// already.
    pub(crate) fn write(&mut self, write: &Write) -> Result<bool, StoreError> {
        let uid = new_uid()?;
        let uid = || uid;
        let now = || humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let Some(record) = self.records.next(write, uid, now) else {
            return Ok(false);
        };
        let Write { kind, name, .. } = write;
        let text = format!("{record:#}\n");
        self.directory.write(&file(*kind, name), text.as_bytes())?;
        self.records.insert(*kind, name.clone(), record);
        Ok(true)
    }

    /// Forgets an object; one that was made here is gone then.
    pub(crate) fn forget(&mut self, kind: Kind, name: &Name) -> Result<(), StoreError> {
        self.directory.remove(&file(kind, name))?;
        self.records.remove(kind, name);
        Ok(())
    }
}

/// A name and a namespace together may be longer than a file's.
fn file(kind: Kind, name: &Name) -> String {
    let digest = Sha256::digest(format!("{kind}/{name}"));
    format!("{}.json", hex::encode(digest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(name: &str, patch: Value) -> Write {
        Write::claim(&Name::new("default", name), patch)
    }

    #[test]
    fn what_was_written_is_there_after_a_restart() {
        let place = tempfile::tempdir().unwrap();
        let mut store = Store::open(place.path()).unwrap();
        let long = "n".repeat(253);
        assert!(store.write(&claim("data", json!({}))).unwrap());
        let bound = claim("data", json!({"spec": {"volumeName": "pv-1"}}));
        assert!(store.write(&bound).unwrap());
        assert!(!store.write(&bound).unwrap(), "nothing has changed");
        store
            .write(&claim(&long, json!({"metadata": {"uid": "given"}})))
            .unwrap();
        let volume = Write::volume("data", json!({"spec": {"capacity": {"storage": "1Gi"}}}));
        store.write(&volume).unwrap();
        let data = Name::new("default", "data");
        let uid = store.records().uid(&data).expect("a uid").to_owned();
        assert_eq!(uid.len(), 36);
        assert_eq!(
            store.records().uid(&Name::new("default", &long)),
            Some("given")
        );
        std::fs::write(place.path().join(DIRECTORY).join(".half"), "{").unwrap();
        let again = Store::open(place.path()).unwrap();
        assert_eq!(again.records(), store.records());
        let record = again.records().get(Kind::PersistentVolumeClaim, &data);
        assert_eq!(record.expect("a record")["spec"]["volumeName"], "pv-1");
        store.forget(Kind::PersistentVolumeClaim, &data).unwrap();
        store.forget(Kind::PersistentVolumeClaim, &data).unwrap();
        let again = Store::open(place.path()).unwrap();
        assert_eq!(again.records(), store.records());
        assert_eq!(again.records().uid(&data), None);
    }

    /// The claim would be a new one, and its volume be destroyed as nobody's.
    #[test]
    fn a_record_that_cannot_be_read_is_not_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let mut store = Store::open(place.path()).unwrap();
        store.write(&claim("data", json!({}))).unwrap();
        let directory = place.path().join(DIRECTORY);
        let file = file(Kind::PersistentVolumeClaim, &Name::new("default", "data"));
        for text in ["", "{", "{}", "null"] {
            std::fs::write(directory.join(&file), text).unwrap();
            let error = Store::open(place.path()).unwrap_err().to_string();
            assert!(error.contains(&file), "{text}: {error}");
            assert!(error.contains("hint: it says which claim"), "{error}");
        }
    }
}
