//! Records of volumes, and what the records of both drivers contain. Each record is a file, which is replaced as a whole.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crust_state::files::{Directory, FileError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::capability::{Capability, FileSystem};
use crate::inline_volume::is_inline_id;
use crate::refusal::DataError;

/// Values by a path from a request, in the form of [`path_key`](crate::requests::path_key).
pub(crate) type ByPath<T> = BTreeMap<String, T>;

/// The name of the directory with the records, in the data directory.
const VOLUMES: &str = "volumes";

/// The suffix of a record's file name.
const SUFFIX: &str = ".json";

/// A publication of a volume for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publication<F> {
    /// The capability that the volume is published with.
    pub(crate) usage: Capability<F>,
    /// Whether this pod can only read the volume.
    pub(crate) read_only: bool,
    /// The program that mounts the volume.
    pub(crate) by: Mounter,
    /// The driver's features when it read the request.
    #[serde(default)]
    pub(crate) features: Vec<String>,
}

/// The program that mounts a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mounter {
    /// The driver mounts the volume on the host.
    Driver,
    /// The container runtime mounts the volume, from the metadata that the driver has staged (KEP-2857).
    Runtime,
    /// The container runtime mounts the volume, and learns from kubelet what to mount (KEP-2857's earlier draft).
    Kubelet,
}

impl<F: FileSystem> Publication<F> {
    /// Describes the publication in a message.
    pub(crate) fn describe(&self) -> String {
        let by = match self.by {
            Mounter::Driver => "mounted by the driver",
            Mounter::Runtime => "deferred to the container runtime",
            Mounter::Kubelet => "left to kubelet and the container runtime",
        };
        let read_only = if self.read_only { ", read-only" } else { "" };
        format!("{by}: {}{read_only}", self.usage.describe())
    }
}

/// The reason why a record can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The record can't be parsed.
    #[error(
        "record {file}: {source}; hint: check whether it was changed by hand, or by a later version of crust-csi"
    )]
    Contents {
        file: String,
        source: serde_json::Error,
    },
}

impl DataError for StoreError {}

/// The name of a file in the data directory that reserves space. If the disk is full, the file is removed to write a
/// record: even if a record gets smaller, replacing its file needs space.
const SPARE_FILE: &str = "spare";

/// The size of the spare file.
const SPARE_BYTES: usize = 64 * 1024;

/// The records of all volumes, of type `R`.
#[derive(Debug)]
pub(crate) struct Store<R> {
    _records: PhantomData<fn() -> R>,
    records: Directory,
    data: Directory,
    /// Held while a record uses the space of the spare file.
    spare_lock: Mutex<()>,
}

impl<R: Serialize + DeserializeOwned> Store<R> {
    /// Opens the records of a data directory.
    pub(crate) fn open(data: &Path) -> Result<Self, FileError> {
        let data = Directory::create(data)?;
        let store = Self {
            _records: PhantomData,
            records: data.create_directory(VOLUMES)?,
            data,
            spare_lock: Mutex::new(()),
        };
        if let Err(error) = store.ensure_spare() {
            tracing::warn!("{}", crust_state::error_message(&error));
        }
        Ok(store)
    }

    fn ensure_spare(&self) -> Result<(), FileError> {
        let spare = self.data.read_record(SPARE_FILE)?;
        if spare.is_some_and(|it| it.len() == SPARE_BYTES) {
            return Ok(());
        }
        // Incompressible data, because some file systems compress: zeroes would occupy no space there.
        let digests = (0_u64..).flat_map(|number| Sha256::digest(number.to_le_bytes()));
        self.data
            .write(SPARE_FILE, &digests.take(SPARE_BYTES).collect::<Vec<u8>>())
    }

    /// Saves a record from which something was removed. This succeeds even if the disk is full.
    pub(crate) fn save_removal(&self, id: &str, record: &R) -> Result<(), StoreError> {
        match self.save(id, record) {
            Err(StoreError::File(error)) if error.is_full() => {
                let _guard = self
                    .spare_lock
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                self.data.remove(SPARE_FILE)?;
                let saved = self.save(id, record);
                if let Err(error) = self.ensure_spare() {
                    tracing::warn!("{}", crust_state::error_message(&error));
                }
                saved
            }
            saved => saved,
        }
    }

    /// Returns all volumes in the order of their ids. The record is `None` if it can't be read; calls for that volume
    /// report the error.
    pub(crate) fn all(&self) -> Result<Vec<(String, Option<R>)>, StoreError> {
        let read = |id: String| match self.load(&id) {
            Ok(record) => (id, record),
            Err(error) => {
                tracing::debug!("volume {id}: {}", crust_state::error_message(&error));
                (id, None)
            }
        };
        Ok(self.ids()?.into_iter().map(read).collect())
    }

    /// Removes temporary files of a driver that was killed. The caller must hold the lock of the data directory.
    pub(crate) fn remove_leftovers(&self) -> Result<(), FileError> {
        let mut result = Ok(());
        for directory in [&self.records, &self.data] {
            directory.leftovers(&mut |found| {
                let removed = found.and_then(|leftover| leftover.remove());
                if result.is_ok() {
                    result = removed;
                }
            });
        }
        result
    }

    /// Reads a volume's record. `None` if there is no such volume.
    pub(crate) fn load(&self, id: &str) -> Result<Option<R>, StoreError> {
        if !is_id(id) {
            return Ok(None);
        }
        let Some(bytes) = self.records.read_record(&file(id))? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&bytes);
        record.map(Some).map_err(|source| StoreError::Contents {
            file: self.records.path().join(file(id)).display().to_string(),
            source,
        })
    }

    /// Writes a volume's record.
    pub(crate) fn save(&self, id: &str, record: &R) -> Result<(), StoreError> {
        let file = file(id);
        let bytes = serde_json::to_vec_pretty(record);
        let bytes = bytes.map_err(|source| StoreError::Contents {
            file: file.clone(),
            source,
        })?;
        Ok(self.records.write(&file, &bytes)?)
    }

    /// Removes a volume's record.
    pub(crate) fn remove(&self, id: &str) -> Result<(), StoreError> {
        Ok(self.records.remove(&file(id))?)
    }

    /// Returns the ids of all volumes, sorted.
    pub(crate) fn ids(&self) -> Result<Vec<String>, StoreError> {
        let names = self.records.names()?;
        let ids = names.iter().filter_map(|name| name.strip_suffix(SUFFIX));
        let mut ids: Vec<String> = ids.filter(|id| is_id(id)).map(str::to_owned).collect();
        ids.sort_unstable();
        Ok(ids)
    }
}

fn file(id: &str) -> String {
    format!("{id}{SUFFIX}")
}

/// The prefix of the ids that the driver assigns.
const PREFIX: &str = "crust-";

/// The number of hex digits in such an id. There are enough of them to avoid collisions, and few enough for the file
/// name in a loop device's status (`LO_NAME_SIZE`).
const DIGITS: usize = 32;

/// Derives the id of a volume from its name. Equal names have equal ids, so a repeated request finds the volume.
pub(crate) fn id_of(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let digits = hex::encode(digest);
    format!("{PREFIX}{}", &digits[..DIGITS])
}

/// Returns whether a text has the form of an id, either of one that the driver assigns or of one that kubelet generates
/// for an inline volume. Must be checked because ids are used in file names.
pub(crate) fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_assigned = text
        .strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit));
    is_assigned || is_inline_id(text)
}

/// Returns the start of an id, which is short enough for the file name in a loop device's status. Ids that the driver
/// assigns are returned unchanged. The start of another id has enough digits of a digest to avoid collisions.
pub(crate) fn short_id(id: &str) -> &str {
    id.get(..PREFIX.len() + DIGITS).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use crust_state::record::Version;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Record {
        version: Version<1>,
        name: String,
    }

    #[test]
    fn an_id_is_unique_and_a_valid_file_name() {
        assert_eq!(id_of("pvc-1"), id_of("pvc-1"));
        assert_ne!(id_of("pvc-1"), id_of("pvc-2"));
        assert!(is_id(&id_of("../../etc/passwd")));
        for other in [
            "",
            "crust-",
            "pvc-1",
            "../crust-00",
            "crust-0000000000000000000000000000000G",
        ] {
            assert!(!is_id(other), "{other}");
        }
    }

    #[test]
    fn the_short_id_of_an_inline_volume_is_not_another_volumes() {
        let inline = format!("csi-{}", "0a".repeat(32));
        assert!(is_id(&inline));
        let created = id_of(&inline);
        assert_eq!(short_id(&created), created);
        assert_eq!(short_id(&inline), &inline[..38]);
        assert!(!is_id(short_id(&inline)));
    }

    #[test]
    fn a_record_is_saved_listed_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::<Record>::open(&place.path().join("data")).unwrap();
        let (id, record) = (
            id_of("a"),
            Record {
                version: Version,
                name: "a".to_owned(),
            },
        );
        assert_eq!(store.load(&id).unwrap(), None);
        store.save(&id, &record).unwrap();
        assert_eq!(store.load(&id).unwrap(), Some(record));
        assert_eq!(store.ids().unwrap(), std::slice::from_ref(&id));
        assert!(store.load("../volumes").unwrap().is_none());
        store.remove(&id).unwrap();
        assert_eq!(store.ids().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_error_about_a_later_version_names_the_record() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::<Record>::open(&place.path().join("data")).unwrap();
        let id = id_of("a");
        store
            .records
            .write(&file(&id), br#"{"version": 2}"#)
            .unwrap();
        let error = store.load(&id).unwrap_err().to_string();
        assert!(error.contains(&id), "{error}");
    }
}
