//! An entry: a directory in the crust directory, or in Kata's, with the files of one volume.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::EntryError;
use crate::files::{Directory, FileError};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::record::{RECORD_FILE, Version, VolumeRecord};
use crate::target::{TARGET_FILE, TargetPresence};
use crust_blockfs::resize::SizeLimits;

/// The format of an entry's `mountInfo.json`. It depends on the directory that the entry is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryFormat {
    Crust,
    Kata,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) directory: Directory,
    pub(super) format: EntryFormat,
}

/// The location of an entry that is opened only while it is read. A node may have more entries than a process may have
/// open files.
#[derive(Debug, Clone)]
pub(super) struct EntryLocation {
    pub(super) root: Arc<Directory>,
    pub(super) name: String,
    pub(super) format: EntryFormat,
}

impl EntryLocation {
    pub(super) fn path(&self) -> PathBuf {
        self.root.path().join(&self.name)
    }

    pub(super) fn open(&self) -> Result<Option<Entry>, FileError> {
        let directory = self.root.open_directory(&self.name)?;
        Ok(directory.map(|directory| Entry {
            directory,
            format: self.format,
        }))
    }

    /// Opens the entry and reads from it. Returns `None` if it doesn't exist any more.
    pub(super) fn read<T, E: From<FileError>>(
        &self,
        read: impl FnOnce(&Entry) -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        self.open()?.map_or(Ok(None), |entry| read(&entry))
    }
}

impl Entry {
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub(super) fn record(&self) -> Result<Option<VolumeRecord>, EntryError> {
        let Some(bytes) = self.directory.read_record(RECORD_FILE)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Record {
                path: self.path(RECORD_FILE),
                source,
            })
    }

    pub(super) fn info(&self) -> Result<MountInfo, EntryError> {
        let path = self.path(MOUNT_INFO);
        let Some(bytes) = self.directory.read(MOUNT_INFO)? else {
            return Err(EntryError::NoInfo(path));
        };
        let info = match self.format {
            EntryFormat::Crust => MountInfo::parse(&bytes),
            EntryFormat::Kata => MountInfo::parse_kata(&bytes),
        };
        info.map_err(|source| EntryError::Info { path, source })
    }

    /// Returns the program to call about the volume while it is in use.
    pub(super) fn runtime_cli(&self) -> Result<Option<PathBuf>, FileError> {
        let line = self.directory.read_record(RUNTIME_CLI)?;
        Ok(line.map(|line| PathBuf::from(OsStr::from_bytes(line.trim_ascii_end()))))
    }

    /// Returns the pending resize, even if it was requested for another device than the staged one.
    pub(super) fn resize(&self) -> Result<Option<ResizeRecord>, EntryError> {
        let Some(bytes) = self.directory.read(RESIZE_FILE)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Resize {
                path: self.path(RESIZE_FILE),
                source,
            })
    }

    /// Returns which part of the target path existed when the volume was staged or last used.
    pub(super) fn presence(&self) -> Result<Option<TargetPresence>, EntryError> {
        let Some(bytes) = self.directory.read(TARGET_FILE)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Target {
                path: self.path(TARGET_FILE),
                source,
            })
    }
}

/// The name of the file with the path of the runtime's CLI, which exists while the volume is in use (KEP-2857).
pub const RUNTIME_CLI: &str = "runtime-cli";

/// The name of the file with a [`ResizeRecord`] in an entry.
pub(super) const RESIZE_FILE: &str = "resize.json";

/// A resize that was requested, and that the next mount of the volume carries out: `resize.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResizeRecord {
    pub version: Version<1>,
    /// The `device` in `mountInfo.json` when the resize was requested. The resize doesn't apply to another device.
    /// Records of early versions have none, and apply to whichever device is staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// The smallest and the largest size that the file system may have afterwards.
    pub limits: SizeLimits,
    /// The error of the last mount that tried the resize and left the volume with its old size. The next mount, and the
    /// next resize request, retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl ResizeRecord {
    /// Returns whether the resize applies to this device.
    #[must_use]
    pub fn is_for(&self, device: &Path) -> bool {
        let requested = self.device.as_deref();
        requested.is_none_or(|requested| requested == device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_record_with_unknown_or_missing_fields_is_refused() {
        let text = r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0}}"#;
        let record: ResizeRecord = serde_json::from_str(text).unwrap();
        assert_eq!(record.limits, SizeLimits::new(5, 0).unwrap());
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert!(record.is_for(Path::new("/dev/a")) && !record.is_for(Path::new("/dev/b")));
        let first = r#"{"version":1,"limits":{"minBytes":5,"maxBytes":0}}"#;
        let first: ResizeRecord = serde_json::from_str(first).unwrap();
        assert!(first.is_for(Path::new("/dev/b")));
        let failed = r#"{"version":1,"limits":{"minBytes":5,"maxBytes":0},"failed":"EPERM"}"#;
        let failed: ResizeRecord = serde_json::from_str(failed).unwrap();
        assert_eq!(failed.failed.as_deref(), Some("EPERM"));
        for bad in [
            r#"{"version":2,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0}}"#,
            r#"{"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0}}"#,
            r#"{"version":1,"device":"/dev/a"}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":-5,"maxBytes":0}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":6,"maxBytes":5}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0,"unit":"MiB"}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0},"done":true}"#,
        ] {
            assert!(serde_json::from_str::<ResizeRecord>(bad).is_err(), "{bad}");
        }
    }
}
