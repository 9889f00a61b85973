//! Volumes' records: a file each, replaced whole.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crust_state::files::{Directory, FileError};
use crust_state::record::Version;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::capability::{Capability, Parameters};
use crate::format::Fstype;

/// Values by a path of requests, each in one spelling.
pub(crate) type ByPath<T> = BTreeMap<String, T>;

/// The directory of records, in the data directory.
const VOLUMES: &str = "volumes";

/// At the end of a record's name.
const SUFFIX: &str = ".json";

/// The record of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: Version<1>,
    /// The name that it was created by; its id is made of it.
    pub(crate) name: String,
    /// In bytes.
    pub(crate) capacity: u64,
    /// The parameters that it was created with.
    pub(crate) parameters: Parameters,
    /// Whether its image is whole.
    #[serde(rename = "life")]
    pub(crate) lifecycle: Lifecycle,
    /// The file system that it was given, which is never made anew.
    #[serde(default)]
    #[serde(rename = "holds")]
    pub(crate) file_system: Option<Fstype>,
    /// The staged uses by staging path.
    #[serde(default)]
    pub(crate) staged: ByPath<Capability>,
    /// The publications by target path. One is written before anything is done, and may be of something that was never
    /// mounted or staged.
    #[serde(default)]
    pub(crate) published: ByPath<Publication>,
}

/// The state of a volume between its creation and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Lifecycle {
    /// Its image is about to be made: there are no data.
    Creating,
    /// It is there.
    Ready,
    /// Its image is about to be removed: there are no data that anybody wants.
    Deleting,
}

/// A publication of a volume for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publication {
    /// The capability that it is published with.
    pub(crate) usage: Capability,
    /// It can only be read.
    pub(crate) read_only: bool,
    /// The program that mounts it.
    pub(crate) by: Mounter,
    /// The features of the driver that read the request.
    #[serde(default)]
    pub(crate) features: Vec<String>,
}

/// The program that mounts a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mounter {
    /// The driver, on the host.
    Driver,
    /// The container runtime, which finds it staged (KEP-2857).
    Runtime,
    /// The container runtime, which kubelet tells what to mount (KEP-2857's earlier draft).
    Kubelet,
}

impl Publication {
    /// In a sentence.
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

impl Record {
    /// Returns the record of a volume that is about to be made.
    pub(crate) fn new(name: &str, capacity: u64, parameters: Parameters) -> Self {
        Self {
            version: Version,
            name: name.to_owned(),
            capacity,
            parameters,
            lifecycle: Lifecycle::Creating,
            file_system: None,
            staged: ByPath::new(),
            published: ByPath::new(),
        }
    }
}

/// A record can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Its file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its text can't be parsed.
    #[error(
        "record {file}: {source}; hint: it was changed by hand, or by a later version of crust-csi"
    )]
    Contents {
        file: String,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

/// Beside the directory of records: room that a record is written to when the disk is full. A file is replaced
/// by another one, and that needs room even where it says less.
const SPARE: &str = "spare";

/// In bytes.
const SPARE_BYTES: usize = 64 * 1024;

/// The records of all volumes.
#[derive(Debug)]
pub(crate) struct Store {
    records: Directory,
    data: Directory,
    /// One record at a time takes the room that was put aside.
    spare_lock: Mutex<()>,
}

impl Store {
    /// Opens the records of a data directory.
    pub(crate) fn open(data: &Path) -> Result<Self, FileError> {
        let data = Directory::create(data)?;
        let store = Self {
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
        let there = self.data.read_record(SPARE)?;
        if there.is_some_and(|it| it.len() == SPARE_BYTES) {
            return Ok(());
        }
        // Zeroes would take no room where a file system compresses.
        let digests = (0_u64..).flat_map(|number| Sha256::digest(number.to_le_bytes()));
        self.data
            .write(SPARE, &digests.take(SPARE_BYTES).collect::<Vec<u8>>())
    }

    /// Keeps a record that says less than before, on a full disk too.
    pub(crate) fn save_removal(&self, id: &str, record: &Record) -> Result<(), StoreError> {
        match self.save(id, record) {
            Err(StoreError::File(error)) if error.is_full() => {
                let _room = self
                    .spare_lock
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                self.data.remove(SPARE)?;
                let saved = self.save(id, record);
                if let Err(error) = self.ensure_spare() {
                    tracing::warn!("{}", crust_state::error_message(&error));
                }
                saved
            }
            saved => saved,
        }
    }

    /// All volumes, in the order of their ids; without a record where that can't be read, which is its own
    /// calls' matter.
    pub(crate) fn all(&self) -> Result<Vec<(String, Option<Record>)>, StoreError> {
        let read = |id: String| match self.load(&id) {
            Ok(record) => (id, record),
            Err(error) => {
                tracing::debug!("volume {id}: {}", crust_state::error_message(&error));
                (id, None)
            }
        };
        Ok(self.ids()?.into_iter().map(read).collect())
    }

    /// Removes what a driver that was killed was writing. To be called by one that has the directory to
    /// itself.
    pub(crate) fn remove_leftovers(&self) -> Result<(), FileError> {
        let mut swept = Ok(());
        for directory in [&self.records, &self.data] {
            directory.leftovers(&mut |found| {
                let removed = found.and_then(|leftover| leftover.remove());
                if swept.is_ok() {
                    swept = removed;
                }
            });
        }
        swept
    }

    /// A volume's record, if there is such a volume.
    pub(crate) fn load(&self, id: &str) -> Result<Option<Record>, StoreError> {
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

    /// Keeps a volume's record.
    pub(crate) fn save(&self, id: &str, record: &Record) -> Result<(), StoreError> {
        let file = file(id);
        let bytes = serde_json::to_vec_pretty(record);
        let bytes = bytes.map_err(|source| StoreError::Contents {
            file: file.clone(),
            source,
        })?;
        Ok(self.records.write(&file, &bytes)?)
    }

    /// Forgets a volume.
    pub(crate) fn remove(&self, id: &str) -> Result<(), StoreError> {
        Ok(self.records.remove(&file(id))?)
    }

    /// All volumes' ids, in order.
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

/// Before each id.
const PREFIX: &str = "crust-";

/// The number of digits of a digest: enough that no two names have the same, and short enough for the name of the file
/// in a loop device's status (`LO_NAME_SIZE`).
const DIGITS: usize = 32;

/// A name's id. It is the same whenever it is asked for, so that a name is made once.
pub(crate) fn id_of(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let digits = hex::encode(digest);
    format!("{PREFIX}{}", &digits[..DIGITS])
}

/// Returns whether a text has the form of an id. An id becomes a file's name.
pub(crate) fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_names_own_and_a_files_name() {
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
    fn a_record_is_kept_listed_and_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("data")).unwrap();
        let (id, record) = (id_of("a"), Record::new("a", 5, Parameters::default()));
        assert_eq!(store.load(&id).unwrap(), None);
        store.save(&id, &record).unwrap();
        assert_eq!(store.load(&id).unwrap(), Some(record));
        assert_eq!(store.ids().unwrap(), std::slice::from_ref(&id));
        assert!(store.load("../volumes").unwrap().is_none());
        store.remove(&id).unwrap();
        assert_eq!(store.ids().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_record_of_a_later_version_is_refused_by_its_name() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("data")).unwrap();
        let id = id_of("a");
        store
            .records
            .write(&file(&id), br#"{"version": 2}"#)
            .unwrap();
        let error = store.load(&id).unwrap_err().to_string();
        assert!(error.contains(&id), "{error}");
    }
}
