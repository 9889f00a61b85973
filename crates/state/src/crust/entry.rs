//! One directory of a layout.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::{EntryError, RUNTIME_CLI};
use crate::files::{Directory, FileError};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::record::{RECORD, VolumeRecord};
use crate::resize::{RESIZE, ResizeRecord};

/// Who wrote an entry, and so what its `mountInfo.json` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Crust,
    Kata,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) directory: Directory,
    pub(super) layout: Layout,
}

/// Where an entry stands. It is opened when it is looked into: a node may have more of them than a
/// process may have files.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) root: Arc<Directory>,
    pub(super) name: String,
    pub(super) layout: Layout,
}

impl Place {
    pub(super) fn path(&self) -> PathBuf {
        self.root.path().join(&self.name)
    }

    pub(super) fn open(&self) -> Result<Option<Entry>, FileError> {
        let directory = self.root.open_directory(&self.name)?;
        Ok(directory.map(|directory| Entry {
            directory,
            layout: self.layout,
        }))
    }

    /// What an entry has that is gone by now: nothing.
    pub(super) fn look<T, E: From<FileError>>(
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
        let Some(bytes) = self.directory.read_record(RECORD)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Record {
                path: self.path(RECORD),
                source,
            })
    }

    pub(super) fn info(&self) -> Result<MountInfo, EntryError> {
        let path = self.path(MOUNT_INFO);
        let Some(bytes) = self.directory.read(MOUNT_INFO)? else {
            return Err(EntryError::NoInfo(path));
        };
        let info = match self.layout {
            Layout::Crust => MountInfo::parse(&bytes),
            Layout::Kata => MountInfo::parse_katas(&bytes),
        };
        info.map_err(|source| EntryError::Info { path, source })
    }

    /// The program that answers for the volume.
    pub(super) fn runtime_cli(&self) -> Result<Option<PathBuf>, FileError> {
        let line = self.directory.read_record(RUNTIME_CLI)?;
        Ok(line.map(|line| PathBuf::from(OsStr::from_bytes(line.trim_ascii_end()))))
    }

    /// The growth that waits for the volume's mount, of whichever device.
    pub(super) fn resize(&self) -> Result<Option<ResizeRecord>, EntryError> {
        let Some(bytes) = self.directory.read(RESIZE)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Resize {
                path: self.path(RESIZE),
                source,
            })
    }
}
