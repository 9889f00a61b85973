//! The log files of containers and their directories.

use std::fs;
use std::io;
use std::path::Path;

use super::StepError;

/// Creates a directory of logs, with its parents.
pub(super) fn create_directory(directory: &Path) -> Result<(), StepError> {
    fs::create_dir_all(directory).map_err(|source| logs_error("mkdir", directory, source))
}

/// Removes a container's log. Succeeds if the log doesn't exist.
pub(super) fn remove_file(log: &Path) -> Result<(), StepError> {
    ignore_missing("unlink", log, fs::remove_file(log))
}

/// Removes the logs of a pod. They are found by the pod's UID, because its name may no longer be known.
pub(super) fn remove_pod_logs(logs: &Path, uid: &str) -> Result<(), StepError> {
    let suffix = format!("_{uid}");
    let entries = match fs::read_dir(logs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    for entry in entries.map_err(|source| logs_error("readdir", logs, source))? {
        let name = entry.file_name();
        if name.as_encoded_bytes().ends_with(suffix.as_bytes()) {
            let path = entry.path();
            ignore_missing("rm -r", &path, fs::remove_dir_all(&path))?;
        }
    }
    Ok(())
}

fn ignore_missing(
    call: &'static str,
    path: &Path,
    removed: io::Result<()>,
) -> Result<(), StepError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(logs_error(call, path, error)),
        _ => Ok(()),
    }
}

fn logs_error(call: &'static str, path: &Path, source: io::Error) -> StepError {
    StepError::Logs {
        call,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_a_pod_are_found_by_its_uid() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("logs");
        remove_pod_logs(&logs, "1-2").expect("a pod without logs isn't an error");
        for name in ["default_web_1-2", "shop_db_21-2", "shop_db_1-22"] {
            create_directory(&logs.join(name).join("app")).unwrap();
        }
        remove_pod_logs(&logs, "1-2").unwrap();
        let remaining = fs::read_dir(&logs).unwrap();
        let mut remaining: Vec<_> = remaining.map(|entry| entry.unwrap().file_name()).collect();
        remaining.sort();
        assert_eq!(remaining, ["shop_db_1-22", "shop_db_21-2"]);
    }
}
