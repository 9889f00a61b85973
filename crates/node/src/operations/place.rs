//! The directories around a volume, and the record beside it.
//!
//! The record stands before the driver is asked, and goes after it has answered: whoever is started anew finds
//! each volume that may be there (KEP-3756). Directories go by rmdir(2) alone, which neither enters a mount nor
//! takes a file.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crust_state::files::Directory;

use super::OperationError;
use crate::volumes::data::VolumeData;
use crate::volumes::layout::DATA;

/// As kubelet's.
const MODE: u32 = 0o750;

/// Makes a directory, and those above it.
pub(crate) fn directory(path: &Path) -> Result<(), OperationError> {
    let mut missing = fs::DirBuilder::new();
    let made = missing.recursive(true).mode(MODE).create(path);
    made.map_err(OperationError::io("mkdir", path))
}

/// Makes a volume's directory, with its record. Whether there was none.
pub(super) fn prepare(volume: &Path, data: &VolumeData) -> Result<bool, OperationError> {
    directory(volume)?;
    let is_new = matches!(VolumeData::read(volume), Ok(None));
    let opened =
        Directory::open(volume).map_err(|error| OperationError::Task(error.to_string()))?;
    let missing = || OperationError::io("open", volume)(ErrorKind::NotFound.into());
    let written = opened.ok_or_else(missing)?.write(DATA, &data.to_json());
    written.map_err(|error| OperationError::Task(error.to_string()))?;
    Ok(is_new)
}

/// Removes a volume's directory: what the driver left of its own in it (`below`), the record, and it.
pub(super) fn clear(volume: &Path, below: &Path) -> Result<(), OperationError> {
    gone("rmdir", below, fs::remove_dir(below))?;
    let data = volume.join(DATA);
    gone("unlink", &data, fs::remove_file(&data))?;
    gone("rmdir", volume, fs::remove_dir(volume))
}

/// What is gone already is as good.
pub(super) fn gone(
    call: &'static str,
    path: &Path,
    removed: io::Result<()>,
) -> Result<(), OperationError> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(OperationError::io(call, path)(error))
        }
        _ => Ok(()),
    }
}
