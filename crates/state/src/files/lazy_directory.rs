//! A directory that is opened by the first call that finds it. Daemons start before the crust directory exists.

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

    /// Returns the directory. Opens it at the first call that finds it. Returns `None` if it doesn't exist.
    pub(crate) fn get(&self) -> Result<Option<&Arc<Directory>>, FileError> {
        if let Some(opened) = self.opened.get() {
            return Ok(Some(opened));
        }
        let opened = Directory::open(&self.path)?;
        Ok(opened.map(|directory| self.opened.get_or_init(|| Arc::new(directory))))
    }

    /// Returns whether the directory exists and may have entries.
    pub(crate) fn may_hold_entries(&self) -> Result<bool, FileError> {
        self.get()?
            .map_or(Ok(false), |directory| directory.may_hold_entries())
    }

    /// Returns whether the directory has been opened, and its path still leads to it.
    pub(crate) fn is_current(&self) -> bool {
        self.opened
            .get()
            .is_some_and(|directory| directory.is_current())
    }

    /// Returns whether the directory has been opened, and is on a file system in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.opened
            .get()
            .is_some_and(|directory| directory.is_in_memory())
    }

    /// Returns the directory. Creates it if it doesn't exist.
    pub(crate) fn create(&self) -> Result<&Directory, FileError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let directory = Directory::create(&self.path)?;
        Ok(self.opened.get_or_init(|| Arc::new(directory)))
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
