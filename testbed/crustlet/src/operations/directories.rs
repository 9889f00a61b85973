//! The directories of volumes, and the record in each.
//!
//! The record is written before the driver is called, and removed after the driver has succeeded. A restarted crustlet
//! therefore finds each volume that may be mounted (KEP-3756). Directories are removed with rmdir(2), which fails on a
//! mount point and on a directory that contains files.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crust_state::files::{Directory, FileError};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx};
use rustix::io::Errno;

use super::OperationError;
use crate::volumes::data::VolumeData;
use crate::volumes::layout::DATA;

/// The mode of directories. kubelet uses the same mode.
const MODE: u32 = 0o750;

/// Creates a directory and its parents.
pub(crate) fn create_directory(path: &Path) -> Result<(), OperationError> {
    let mut builder = fs::DirBuilder::new();
    let created = builder.recursive(true).mode(MODE).create(path);
    created.map_err(OperationError::io("mkdir", path))
}

/// Fails if the directory belongs to another volume of the pod.
pub(super) fn check_owner(volume: &Path, data: &VolumeData) -> Result<(), OperationError> {
    match VolumeData::read(volume) {
        Ok(Some(other)) if other.id() != data.id() && other.directory() == data.directory() => {
            let (path, id) = (volume.to_owned(), other.id());
            Err(OperationError::DirectoryInUse { path, id })
        }
        // A record that is missing or unreadable is replaced.
        _ => Ok(()),
    }
}

/// Creates a volume's directory and record. Returns whether the directory is new. An existing directory without a
/// record isn't new: its record may have been lost.
pub(super) fn prepare(volume: &Path, data: &VolumeData) -> Result<bool, OperationError> {
    let exists = volume.try_exists();
    let is_new = !exists.map_err(OperationError::io("stat", volume))?;
    create_directory(volume)?;
    let opened =
        Directory::open(volume).map_err(|error| OperationError::Other(error.to_string()))?;
    let missing = || OperationError::io("open", volume)(ErrorKind::NotFound.into());
    let written = opened.ok_or_else(missing)?.write(DATA, &data.to_json());
    written.map_err(|error| OperationError::Other(error.to_string()))?;
    Ok(is_new)
}

/// Removes a volume's directory: the mount point in it, which the driver may have left, the record, and the directory.
pub(super) fn remove_volume_dir(volume: &Path, mount_point: &Path) -> Result<(), OperationError> {
    ignore_missing("rmdir", mount_point, fs::remove_dir(mount_point))?;
    remove_unfinished(volume)?;
    let data = volume.join(DATA);
    ignore_missing("unlink", &data, fs::remove_file(&data))?;
    ignore_missing("rmdir", volume, fs::remove_dir(volume))
}

/// Removes temporary files of records whose writer was killed. No record is being written meanwhile, because only one
/// crustlet uses the root directory, and a volume has one operation at a time.
pub(super) fn remove_unfinished(volume: &Path) -> Result<(), OperationError> {
    let to_error = |error: FileError| OperationError::Other(error.to_string());
    let mut removed = Ok(());
    if let Some(directory) = Directory::open(volume).map_err(to_error)? {
        directory.leftovers(&mut |found| {
            let result = found.and_then(|leftover| leftover.remove());
            removed = std::mem::replace(&mut removed, Ok(())).and(result);
        });
    }
    removed.map_err(to_error)
}

/// Returns whether a path is the root of a mount. Returns false if the path doesn't exist. Symbolic links aren't
/// followed.
pub(super) fn is_mount_root(path: &Path) -> Result<bool, OperationError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(OperationError::system("open", path)(errno)),
    };
    let stat = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    let stat = stat.map_err(OperationError::system("statx", path))?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Turns the error that a removed file doesn't exist into success.
pub(super) fn ignore_missing(
    call: &'static str,
    path: &Path,
    result: io::Result<()>,
) -> Result<(), OperationError> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(OperationError::io(call, path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::actual::Mounter;
    use crate::volumes::spec::{Lifecycle, VolumeId};

    fn data() -> VolumeData {
        let id = VolumeId {
            driver: "csi.example".to_owned(),
            handle: "one".to_owned(),
        };
        VolumeData::new(&id, "pv-1", Lifecycle::Persistent, Mounter::Deferred, "n")
    }

    #[test]
    fn temporary_files_are_removed_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, mount_point) = (dir.path().join("pv-1"), dir.path().join("pv-1/mount"));
        let temporary = format!(".{DATA}.{}.1a.0", std::process::id());
        for has_record in [true, false] {
            fs::create_dir(&volume).unwrap();
            fs::write(volume.join(&temporary), "{").unwrap();
            if has_record {
                prepare(&volume, &data()).unwrap();
            }
            remove_volume_dir(&volume, &mount_point).unwrap();
            assert!(!volume.exists());
        }
        remove_volume_dir(&volume, &mount_point).expect("the directory is gone");
        // Files that are not temporary are kept.
        create_directory(&volume).unwrap();
        fs::write(volume.join(".kept"), "").unwrap();
        let error = remove_volume_dir(&volume, &mount_point)
            .unwrap_err()
            .to_string();
        assert!(error.contains("ENOTEMPTY"), "{error}");
    }

    #[test]
    fn only_the_root_of_a_mount_is_a_mount_root() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("mount");
        assert!(
            !is_mount_root(&directory).unwrap(),
            "the directory doesn't exist"
        );
        fs::create_dir(&directory).unwrap();
        assert!(!is_mount_root(&directory).unwrap());
        assert!(is_mount_root(Path::new("/proc")).unwrap());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(!is_mount_root(&link).unwrap(), "a link isn't followed");
    }

    #[test]
    fn an_existing_directory_is_not_new() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("pv-1");
        let record = volume.join(DATA);
        assert!(prepare(&volume, &data()).unwrap());
        assert!(!prepare(&volume, &data()).unwrap());
        fs::write(&record, "{").unwrap();
        assert!(!prepare(&volume, &data()).unwrap());
        fs::remove_file(&record).unwrap();
        assert!(!prepare(&volume, &data()).unwrap());
        assert_eq!(VolumeData::read(&volume).unwrap(), Some(data()));
        remove_volume_dir(&volume, &volume.join("mount")).unwrap();
        assert!(!volume.exists());
    }
}
