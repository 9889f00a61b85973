//! The directories around a volume, with the record beside it.
//!
//! The record is written before the driver is called, and removed after it has answered: a restarted crustlet finds
//! each volume that may be there (KEP-3756). Directories go by rmdir(2) alone, which neither enters a mount nor takes a
//! file.

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

/// The mode of directories, as kubelet's.
const MODE: u32 = 0o750;

/// Makes a directory, and those above it.
pub(crate) fn directory(path: &Path) -> Result<(), OperationError> {
    let mut missing = fs::DirBuilder::new();
    let made = missing.recursive(true).mode(MODE).create(path);
    made.map_err(OperationError::io("mkdir", path))
}

/// Refuses a pod's directory that another volume has.
pub(super) fn check(volume: &Path, data: &VolumeData) -> Result<(), OperationError> {
    match VolumeData::read(volume) {
        Ok(Some(other)) if other.id() != data.id() && other.directory() == data.directory() => {
            let (path, id) = (volume.to_owned(), other.id());
            Err(OperationError::Occupied { path, id })
        }
        // What can't be told is written anew.
        _ => Ok(()),
    }
}

/// Makes a volume's directory, with its record. Whether there was none: what has lost its record may be there.
pub(super) fn prepare(volume: &Path, data: &VolumeData) -> Result<bool, OperationError> {
    let there = volume.try_exists();
    let is_new = !there.map_err(OperationError::io("stat", volume))?;
    directory(volume)?;
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
    remove_unfinished(volume)?;
    let data = volume.join(DATA);
    gone("unlink", &data, fs::remove_file(&data))?;
    gone("rmdir", volume, fs::remove_dir(volume))
}

/// Removes what was to be a record when whoever wrote it was killed. Nobody is at it: the root directory is one
/// crustlet's, and a volume has one operation at a time.
pub(super) fn remove_unfinished(volume: &Path) -> Result<(), OperationError> {
    let failed = |error: FileError| OperationError::Task(error.to_string());
    let mut removed = Ok(());
    if let Some(directory) = Directory::open(volume).map_err(failed)? {
        directory.leftovers(&mut |found| {
            let gone = found.and_then(|leftover| leftover.remove());
            removed = std::mem::replace(&mut removed, Ok(())).and(gone);
        });
    }
    removed.map_err(failed)
}

/// Returns whether a path is the root of a mount: false where nothing is. Doesn't follow a symbolic link.
pub(super) fn is_mount_root(path: &Path) -> Result<bool, OperationError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = match openat(CWD, path, flags, Mode::empty()) {
        Ok(held) => held,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(OperationError::system("open", path)(errno)),
    };
    let stat = statx(&held, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    let stat = stat.map_err(OperationError::system("statx", path))?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Treats the removal of something that is gone already as success.
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
    fn what_a_killed_crustlet_wrote_half_goes_with_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let (volume, below) = (place.path().join("pv-1"), place.path().join("pv-1/mount"));
        let half = format!(".{DATA}.{}.1a.0", std::process::id());
        for is_whole in [true, false] {
            fs::create_dir(&volume).unwrap();
            fs::write(volume.join(&half), "{").unwrap();
            if is_whole {
                prepare(&volume, &data()).unwrap();
            }
            clear(&volume, &below).unwrap();
            assert!(!volume.exists());
        }
        clear(&volume, &below).expect("it is gone");
        // What somebody else has put there stays.
        directory(&volume).unwrap();
        fs::write(volume.join(".kept"), "").unwrap();
        let error = clear(&volume, &below).unwrap_err().to_string();
        assert!(error.contains("ENOTEMPTY"), "{error}");
    }

    #[test]
    fn only_the_root_of_a_mount_is_one() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("mount");
        assert!(!is_mount_root(&directory).unwrap(), "it isn't there");
        fs::create_dir(&directory).unwrap();
        assert!(!is_mount_root(&directory).unwrap());
        assert!(is_mount_root(Path::new("/proc")).unwrap());
        let link = place.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(!is_mount_root(&link).unwrap(), "a link isn't followed");
    }

    #[test]
    fn an_existing_directory_is_not_new() {
        let place = tempfile::tempdir().unwrap();
        let volume = place.path().join("pv-1");
        let record = volume.join(DATA);
        assert!(prepare(&volume, &data()).unwrap());
        assert!(!prepare(&volume, &data()).unwrap());
        fs::write(&record, "{").unwrap();
        assert!(!prepare(&volume, &data()).unwrap());
        fs::remove_file(&record).unwrap();
        assert!(!prepare(&volume, &data()).unwrap());
        assert_eq!(VolumeData::read(&volume).unwrap(), Some(data()));
        clear(&volume, &volume.join("mount")).unwrap();
        assert!(!volume.exists());
    }
}
