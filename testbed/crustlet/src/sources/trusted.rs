//! Checks that only root can write manifests: what is in one runs as root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crust_state::files::{Directory, FileError};

/// Others than root could change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} {reason}; hint: what is in a manifest runs as root, so root alone may own and write it and the directories on \
     the way (chown root:root, chmod go-w)",
    place.display()
)]
pub(crate) struct Untrusted {
    place: PathBuf,
    reason: &'static str,
}

impl Untrusted {
    /// Returns the error of a file if it is that others can change it, or else gives it back.
    pub(super) fn of(error: FileError) -> Result<Self, FileError> {
        match error {
            FileError::Untrusted { path, reason } => Ok(Self {
                place: path,
                reason,
            }),
            other => Err(other),
        }
    }
}

/// Looks at a directory of manifests, and at what leads there. That it isn't there is somebody else's to tell.
pub(super) fn directory(path: &Path) -> Result<(), String> {
    let opened = Directory::open(path).map(drop);
    opened.map_err(|error| match Untrusted::of(error) {
        Ok(untrusted) => untrusted.to_string(),
        Err(error) => crust_state::sentence(&error),
    })
}

/// Looks at a file in such a directory: nobody else can put another one in its place.
pub(super) fn file(path: &Path, metadata: &Metadata) -> Result<(), String> {
    let reason = if metadata.uid() != 0 {
        "isn't owned by root"
    } else if metadata.mode() & 0o022 != 0 {
        "can be written by others than root"
    } else {
        return Ok(());
    };
    let place = path.to_owned();
    Err(Untrusted { place, reason }.to_string())
}
