//! The directories of containers' logs.

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

/// Removes a pod's from the directory of all, by its uid: what it was called may be forgotten.
pub(super) fn remove_of(logs: &Path, uid: &str) -> Result<(), StepError> {
    let ending = format!("_{uid}");
    let listed = match fs::read_dir(logs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    for entry in listed.map_err(|source| failed("readdir", logs, source))? {
        let name = entry.file_name();
        if name.as_encoded_bytes().ends_with(ending.as_bytes()) {
            let path = entry.path();
            gone("rm -r", &path, fs::remove_dir_all(&path))?;
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_logs_are_found_by_its_uid() {
        let place = tempfile::tempdir().unwrap();
        let logs = place.path().join("logs");
        remove_of(&logs, "1-2").expect("there are none");
        for name in ["default_web_1-2", "shop_db_21-2", "shop_db_1-22"] {
            make(&logs.join(name).join("app")).unwrap();
        }
        remove_of(&logs, "1-2").unwrap();
        let left = fs::read_dir(&logs).unwrap();
        let mut left: Vec<_> = left.map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["shop_db_1-22", "shop_db_21-2"]);
    }
}
