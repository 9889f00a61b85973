//! Checks that only root can write manifests, because they are run as root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crust_state::files::{Directory, FileError};

/// The error of a file or directory that a user other than root could change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} {reason}; hint: let only root own and write to the file and its parent directories (chown root:root, chmod go-w), \
     because manifests are run as root",
    path.display()
)]
pub(crate) struct Untrusted {
    path: PathBuf,
    reason: &'static str,
}

impl Untrusted {
    /// Converts an error that means that others can write to the file. Returns other errors unchanged.
    pub(super) fn from_file_error(error: FileError) -> Result<Self, FileError> {
        match error {
            FileError::Untrusted { path, reason } => Ok(Self { path, reason }),
            other => Err(other),
        }
    }
}

/// Checks a manifest directory and its parents. Succeeds if the directory doesn't exist.
pub(super) fn check_directory(path: &Path) -> Result<(), String> {
    let opened = Directory::open(path).map(drop);
    opened.map_err(|error| match Untrusted::from_file_error(error) {
        Ok(untrusted) => untrusted.to_string(),
        Err(error) => crust_state::error_message(&error),
    })
}

/// Checks a file in a directory that has been checked.
pub(super) fn check_file(path: &Path, metadata: &Metadata) -> Result<(), String> {
    let reason = if metadata.uid() != 0 {
        "isn't owned by root"
    } else if metadata.mode() & 0o022 != 0 {
        "can be written by others than root"
    } else {
        return Ok(());
    };
    let path = path.to_owned();
    Err(Untrusted { path, reason }.to_string())
}
