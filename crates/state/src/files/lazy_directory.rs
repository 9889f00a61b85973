//! A directory that is opened once it exists: daemons start before anything is staged.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{Directory, FileError};

#[derive(Debug)]
pub(crate) struct LazyDirectory {
    path: PathBuf,
    opened: OnceLock<Arc<Directory>>,
}

impl LazyDirectory {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            opened: OnceLock::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory, which is opened at the first call that finds it; `None` while there is none.
    pub(crate) fn get(&self) -> Result<Option<&Arc<Directory>>, FileError> {
        if let Some(opened) = self.opened.get() {
            return Ok(Some(opened));
        }
        let opened = Directory::open(&self.path)?;
        Ok(opened.map(|directory| self.opened.get_or_init(|| Arc::new(directory))))
    }

    /// Whether there may be anything in the directory.
    pub(crate) fn may_hold_entries(&self) -> Result<bool, FileError> {
        self.get()?
            .map_or(Ok(false), |directory| directory.may_hold_entries())
    }

    /// Whether the directory was opened before, and its path still leads to it.
    pub(crate) fn is_current(&self) -> bool {
        self.opened
            .get()
            .is_some_and(|directory| directory.is_current())
    }

    /// Whether the directory was opened before, and is on a file system in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.opened
            .get()
            .is_some_and(|directory| directory.is_in_memory())
    }

    /// Returns the directory, which is created if it is missing.
    pub(crate) fn create(&self) -> Result<&Directory, FileError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let made = Directory::create(&self.path)?;
        Ok(self.opened.get_or_init(|| Arc::new(made)))
    }

    pub(crate) fn open_directory(&self, name: &str) -> Result<Option<Directory>, FileError> {
        self.get()?
            .map_or(Ok(None), |directory| directory.open_directory(name))
    }

    pub(crate) fn remove_directory(&self, name: &str) -> Result<(), FileError> {
        self.get()?
            .map_or(Ok(()), |directory| directory.remove_directory(name))
    }
}
