//! `vol_data.json`, the record of a staged or published volume. A restarted crustlet reconstructs the volume from it.
//! The keys are kubelet's, KEP-2857's `deferFSMount`, and one of crustlet's own for KEP-2857's earlier draft.

use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use serde::{Deserialize, Serialize};

use super::actual::Mounter;
use super::layout::DATA;
use super::spec::{Lifecycle, VolumeId};

/// The size limit of a record, in bytes. kubelet's records have a few hundred bytes.
const MAX_RECORD_SIZE: u64 = 64 * 1024;

/// A volume's record. All values are strings, as in kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeData {
    #[serde(rename = "attachmentID", default)]
    attachment_id: String,
    driver_name: String,
    #[serde(default)]
    node_name: String,
    /// Empty in kubelet's records of staged volumes, which only have the driver and the handle.
    #[serde(rename = "specVolID", default)]
    directory: String,
    volume_handle: String,
    #[serde(default = "persistent")]
    volume_lifecycle_mode: String,
    /// Whether the volume is deferred (KEP-2857, "Enhancements to Kubelet"). A missing key means `false`.
    #[serde(
        rename = "deferFSMount",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    deferred: String,
    /// Whether the driver left the mount to the runtime (KEP-2857's earlier draft). A missing key means
    /// `false`.
    #[serde(
        rename = "runtimeAssistedMount",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    runtime_assisted: String,
}

fn persistent() -> String {
    Lifecycle::Persistent.as_str().to_owned()
}

/// The error of a record that can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// The file can't be read.
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is not a valid record.
    #[error("{}: {source}", path.display())]
    Contents {
        path: PathBuf,
        source: serde_json::Error,
    },
}

impl VolumeData {
    /// Returns the record of a volume with its mounter. The mounter of a staged volume is the driver.
    pub(crate) fn new(
        id: &VolumeId,
        directory: &str,
        lifecycle: Lifecycle,
        mounter: Mounter,
        node: &str,
    ) -> Self {
        let flag = |other: Mounter| if other == mounter { "true" } else { "" }.to_owned();
        Self {
            attachment_id: String::new(),
            driver_name: id.driver.clone(),
            node_name: node.to_owned(),
            directory: directory.to_owned(),
            volume_handle: id.handle.clone(),
            volume_lifecycle_mode: lifecycle.as_str().to_owned(),
            deferred: flag(Mounter::Deferred),
            runtime_assisted: flag(Mounter::Runtime),
        }
    }

    pub(crate) fn id(&self) -> VolumeId {
        VolumeId {
            driver: self.driver_name.clone(),
            handle: self.volume_handle.clone(),
        }
    }

    /// Returns the name of the volume's directory in a pod's directory.
    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        if self.volume_lifecycle_mode == Lifecycle::Ephemeral.as_str() {
            Lifecycle::Ephemeral
        } else {
            Lifecycle::Persistent
        }
    }

    /// Returns the program that has mounted the volume, or will mount it.
    pub(crate) fn mounter(&self) -> Mounter {
        if self.deferred == "true" {
            Mounter::Deferred
        } else if self.runtime_assisted == "true" {
            Mounter::Runtime
        } else {
            Mounter::Driver
        }
    }

    /// Returns the record with another mounter.
    pub(crate) fn with_mounter(&self, mounter: Mounter) -> Self {
        Self::new(
            &self.id(),
            &self.directory,
            self.lifecycle(),
            mounter,
            &self.node_name,
        )
    }

    /// Returns the contents of the file.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the record in a volume's directory. Returns `None` if the record doesn't exist.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, DataError> {
        let path = directory.join(DATA);
        let bytes = match bounded::read(&path, MAX_RECORD_SIZE) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(DataError::Read { path, source }),
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| DataError::Contents { path, source })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn id() -> VolumeId {
        VolumeId {
            driver: "csi.example".to_owned(),
            handle: "handle-1".to_owned(),
        }
    }

    #[test]
    fn kubelets_record_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(VolumeData::read(dir.path()).unwrap(), None);
        let text = r#"{"attachmentID":"csi-1","driverName":"csi.example","nodeName":"n","seLinuxMountContext":"",
            "specVolID":"pv-1","volumeHandle":"handle-1","volumeLifecycleMode":"Persistent"}"#;
        fs::write(dir.path().join(DATA), text).unwrap();
        let data = VolumeData::read(dir.path()).unwrap().expect("a record");
        assert_eq!((data.id(), data.directory()), (id(), "pv-1"));
        assert_eq!(data.lifecycle(), Lifecycle::Persistent);
        assert_eq!(data.mounter(), Mounter::Driver);
    }

    #[test]
    fn a_mounter_other_than_the_driver_is_recorded() {
        let data = VolumeData::new(&id(), "v", Lifecycle::Ephemeral, Mounter::Driver, "n");
        for (mounter, key) in [
            (Mounter::Deferred, Some("deferFSMount")),
            (Mounter::Runtime, Some("runtimeAssistedMount")),
            (Mounter::Driver, None),
        ] {
            let data = data.with_mounter(mounter);
            let value = serde_json::to_value(&data).unwrap();
            assert_eq!(value["volumeLifecycleMode"], "Ephemeral");
            for flag in ["deferFSMount", "runtimeAssistedMount"] {
                let found = value.get(flag).and_then(serde_json::Value::as_str);
                assert_eq!(
                    found,
                    (Some(flag) == key).then_some("true"),
                    "{mounter:?}: {flag}"
                );
            }
            let parsed: VolumeData = serde_json::from_value(value).unwrap();
            assert_eq!(parsed, data);
            assert_eq!(parsed.mounter(), mounter);
        }
    }

    #[test]
    fn the_error_of_an_invalid_record_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(DATA), "{").unwrap();
        let error = VolumeData::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains(DATA), "{error}");
    }
}
