//! Where containers' logs are.

use std::fs;
use std::io;
use std::path::Path;

use super::StepError;

/// Makes a directory of logs.
pub(super) fn make(directory: &Path) -> Result<(), StepError> {
    fs::create_dir_all(directory).map_err(|source| failed("mkdir", directory, source))
}

/// Removes a container's.
pub(super) fn remove_file(log: &Path) -> Result<(), StepError> {
    gone("unlink", log, fs::remove_file(log))
}

/// Removes a pod's.
pub(super) async fn remove(directory: &Path) -> Result<(), StepError> {
    let path = directory.to_owned();
    let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(path)).await;
    gone(
        "rm -r",
        directory,
        removed.unwrap_or_else(|error| Err(io::Error::other(error))),
    )
}

fn gone(call: &'static str, path: &Path, removed: io::Result<()>) -> Result<(), StepError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(call, path, error)),
        _ => Ok(()),
    }
}

fn failed(call: &'static str, path: &Path, source: io::Error) -> StepError {
    StepError::Logs {
        call,
        path: path.to_owned(),
        source,
    }
}
