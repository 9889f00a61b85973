//! `vol_data.json`, the record beside each staged or published volume, by which a restarted crustlet takes it back. The
//! keys are kubelet's, KEP-2857's `deferFSMount`, and one of crustlet's for its earlier draft.

use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use serde::{Deserialize, Serialize};

use super::actual::Mounter;
use super::layout::DATA;
use super::spec::{Lifecycle, VolumeId};

/// In bytes: kubelet's have some hundred.
const LARGEST: u64 = 64 * 1024;

/// A volume's record. Values are texts, as kubelet's are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeData {
    #[serde(rename = "attachmentID", default)]
    attachment_id: String,
    driver_name: String,
    #[serde(default)]
    node_name: String,
    /// Empty in kubelet's of staged volumes, which have the driver and the handle alone.
    #[serde(rename = "specVolID", default)]
    directory: String,
    volume_handle: String,
    #[serde(default = "persistent")]
    volume_lifecycle_mode: String,
    /// KEP-2857, "Enhancements to Kubelet": absent is `false`.
    #[serde(
        rename = "deferFSMount",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    deferred: String,
    /// The runtime was left to mount it, as the driver has answered (KEP-2857's earlier draft): absent is `false`.
    #[serde(
        rename = "runtimeAssistedMount",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    assisted: String,
}

fn persistent() -> String {
    Lifecycle::Persistent.as_str().to_owned()
}

/// A record that can't be written, read or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// It can't be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It isn't what a kubelet writes.
    #[error("{}: {source}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// The error.
        source: serde_json::Error,
    },
}

impl VolumeData {
    /// Returns the record of a volume with its mounter, which for a staged volume is the driver.
    pub(crate) fn new(
        id: &VolumeId,
        directory: &str,
        lifecycle: Lifecycle,
        mounter: Mounter,
        node: &str,
    ) -> Self {
        let said = |it: Mounter| if it == mounter { "true" } else { "" }.to_owned();
        Self {
            attachment_id: String::new(),
            driver_name: id.driver.clone(),
            node_name: node.to_owned(),
            directory: directory.to_owned(),
            volume_handle: id.handle.clone(),
            volume_lifecycle_mode: lifecycle.as_str().to_owned(),
            deferred: said(Mounter::Deferred),
            assisted: said(Mounter::Runtime),
        }
    }

    /// Returns the id of the volume.
    pub(crate) fn id(&self) -> VolumeId {
        VolumeId {
            driver: self.driver_name.clone(),
            handle: self.volume_handle.clone(),
        }
    }

    /// The name of the volume's directory in a pod's.
    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    /// Whether there is a volume without the pod.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        if self.volume_lifecycle_mode == Lifecycle::Ephemeral.as_str() {
            Lifecycle::Ephemeral
        } else {
            Lifecycle::Persistent
        }
    }

    /// Returns the program that has it mounted, or will.
    pub(crate) fn mounter(&self) -> Mounter {
        if self.deferred == "true" {
            Mounter::Deferred
        } else if self.assisted == "true" {
            Mounter::Runtime
        } else {
            Mounter::Driver
        }
    }

    /// The same of what is mounted by another.
    pub(crate) fn by(&self, mounter: Mounter) -> Self {
        Self::new(
            &self.id(),
            &self.directory,
            self.lifecycle(),
            mounter,
            &self.node_name,
        )
    }

    /// Returns the text of the file.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the record in a volume's directory. `None` if there is none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, DataError> {
        let path = directory.join(DATA);
        let bytes = match bounded::read(&path, LARGEST) {
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
    fn a_record_of_kubelets_is_read() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(VolumeData::read(place.path()).unwrap(), None);
        let text = r#"{"attachmentID":"csi-1","driverName":"csi.example","nodeName":"n","seLinuxMountContext":"",
            "specVolID":"pv-1","volumeHandle":"handle-1","volumeLifecycleMode":"Persistent"}"#;
        fs::write(place.path().join(DATA), text).unwrap();
        let data = VolumeData::read(place.path()).unwrap().expect("a record");
        assert_eq!((data.id(), data.directory()), (id(), "pv-1"));
        assert_eq!(data.lifecycle(), Lifecycle::Persistent);
        assert_eq!(data.mounter(), Mounter::Driver);
    }

    #[test]
    fn who_has_it_mounted_is_said_where_it_is_not_the_driver() {
        let data = VolumeData::new(&id(), "v", Lifecycle::Ephemeral, Mounter::Driver, "n");
        for (mounter, key) in [
            (Mounter::Deferred, Some("deferFSMount")),
            (Mounter::Runtime, Some("runtimeAssistedMount")),
            (Mounter::Driver, None),
        ] {
            let data = data.by(mounter);
            let value = serde_json::to_value(&data).unwrap();
            assert_eq!(value["volumeLifecycleMode"], "Ephemeral");
            for it in ["deferFSMount", "runtimeAssistedMount"] {
                let said = value.get(it).and_then(serde_json::Value::as_str);
                assert_eq!(
                    said,
                    (Some(it) == key).then_some("true"),
                    "{mounter:?}: {it}"
                );
            }
            let again: VolumeData = serde_json::from_value(value).unwrap();
            assert_eq!(again, data);
            assert_eq!(again.mounter(), mounter);
        }
    }

    #[test]
    fn what_is_no_record_is_an_error_that_names_the_file() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(DATA), "{").unwrap();
        let error = VolumeData::read(place.path()).unwrap_err().to_string();
        assert!(error.contains(DATA), "{error}");
    }
}
