//! Removes target paths when a volume is unpublished, but keeps files that a workload has written there.
//!
//! What exists at the path decides, not a record. A kubelet without KEP-2857 creates the directories of subPaths in the
//! target directory of a deferred volume, and runtimes create missing bind sources. These directories are empty. A pod
//! that ran under a handler without runcrust has written files there, on the host's disk. They are the only copy of the
//! data, and kubelet's own rmdir would fail for ever.

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crust_blockfs::errno::{self, Name};
use crust_blockfs::mountinfo::MountInfoError;
use crust_state::TargetPath;
use crust_volume::bare_directory::{self, DirectoryContents};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, openat, openat2,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::mounts;
use crate::refusal::NodeError;

/// The reason why a target path can't be removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    /// A system call failed.
    #[error("{call} {}: {}{hint}", path.display(), Name(*errno))]
    Call {
        call: &'static str,
        path: PathBuf,
        errno: Errno,
        /// The next step in the form "; hint: …", or an empty string.
        hint: &'static str,
    },
    /// There are files at the path, and there is no quarantine directory for them.
    #[error(
        "{}: files were written there on the host; hint: set --quarantine-dir to a directory on the same mount, to which they are moved",
        .0.display()
    )]
    NoQuarantine(PathBuf),
    /// Something is mounted below the path.
    #[error(
        "{}: {mounted} is mounted there and doesn't belong to this volume; hint: run `umount {}`",
        path.display(), path.display()
    )]
    MountBelow {
        /// The mount point.
        path: PathBuf,
        /// File system and source of the mount.
        mounted: String,
    },
    #[error(transparent)]
    MountInfo(#[from] MountInfoError),
}

impl NodeError for CleanupError {
    fn is_volume_state(&self) -> bool {
        match self {
            Self::Call { errno, .. } => matches!(*errno, Errno::BUSY | Errno::XDEV),
            Self::NoQuarantine(_) | Self::MountBelow { .. } => true,
            Self::MountInfo(_) => false,
        }
    }
}

/// Removes a target path at which nothing is mounted any more. Succeeds if the path doesn't exist. If there are files,
/// they are moved to the quarantine directory, and the new path is returned. Fails if something is mounted below the
/// path.
pub(crate) fn remove_target(
    target: &TargetPath,
    quarantine: Option<&Path>,
) -> Result<Option<PathBuf>, CleanupError> {
    let path = target.as_path();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match openat(CWD, parent, flags, Mode::empty()) {
        Ok(parent) => parent,
        Err(errno) if is_missing(errno) => return Ok(None),
        Err(errno) => return Err(failed("open", parent)(errno)),
    };
    let stat = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(errno) if is_missing(errno) => return Ok(None),
        Err(errno) => return Err(failed("fstatat", path)(errno)),
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        // Another file system must not be searched, or moved away with its mount point.
        check_no_mount_below(path)?;
    }
    let removed = match kind {
        FileType::Directory if bare_directory::contents(path) == DirectoryContents::Bare => {
            remove_directories(&parent, name, path)
        }
        // The mount point of a block volume's device node.
        FileType::RegularFile if stat.st_size == 0 => {
            unlinkat(&parent, name, AtFlags::empty()).map_err(failed("unlink", path))
        }
        _ => Err(failed("rmdir", path)(Errno::NOTEMPTY)),
    };
    match removed {
        Ok(()) => Ok(None),
        // Either the target isn't empty, or a process has written to it while it was being removed.
        Err(CleanupError::Call {
            errno: Errno::NOTEMPTY,
            ..
        }) => move_to_quarantine(&parent, name, target, quarantine).map(Some),
        Err(error) => Err(error),
    }
}

/// Returns whether a path doesn't exist, or is the empty file or directory that an orchestrator may create for a
/// volume.
pub(crate) fn is_vacant(path: &Path, is_block: bool) -> bool {
    match fs::symlink_metadata(path) {
        Ok(found) if is_block => found.is_file() && found.len() == 0,
        Ok(found) => found.is_dir() && fs::read_dir(path).is_ok_and(|mut it| it.next().is_none()),
        // If the path isn't simply missing, creating it will fail.
        Err(_) => true,
    }
}

/// Returns whether an error means that a path doesn't exist, or can't exist.
fn is_missing(errno: Errno) -> bool {
    let nothing = [Errno::NOENT, Errno::NOTDIR, Errno::NAMETOOLONG, Errno::LOOP];
    nothing.contains(&errno)
}

/// Removes a tree of directories from the bottom up. Fails with `ENOTEMPTY` if it contains anything else, and with
/// `EBUSY` or `EXDEV` if something is mounted in it.
fn remove_directories(at: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), CleanupError> {
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(failed("rmdir", path)(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(at, name, flags, Mode::empty(), resolve);
    let directory = directory.map_err(failed("openat2(RESOLVE_NO_XDEV)", path))?;
    for below in names(&directory).map_err(failed("getdents64", path))? {
        match remove_directories(&directory, &below, &path.join(&below)) {
            // The entry isn't a directory, so the directory that contains it isn't empty.
            Err(CleanupError::Call {
                errno: Errno::NOTDIR,
                ..
            }) => return Err(failed("rmdir", path)(Errno::NOTEMPTY)),
            other => other?,
        }
    }
    unlinkat(at, name, AtFlags::REMOVEDIR).map_err(failed("rmdir", path))
}

/// Fails if something is mounted below a directory.
fn check_no_mount_below(directory: &Path) -> Result<(), CleanupError> {
    match mounts::mount_below(directory)? {
        None => Ok(()),
        Some(mounted) => Err(CleanupError::MountBelow {
            mounted: mounts::describe(&mounted),
            path: mounted.mount_point,
        }),
    }
}

fn names(directory: impl AsFd) -> Result<Vec<OsString>, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let owned = |name: &CStr| OsStr::from_bytes(name.to_bytes()).to_owned();
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(owned(entry.file_name()));
        }
    }
    Ok(names)
}

/// Moves the file or directory at a target path to the quarantine directory. Returns its new path.
fn move_to_quarantine(
    parent: &OwnedFd,
    name: &OsStr,
    target: &TargetPath,
    quarantine: Option<&Path>,
) -> Result<PathBuf, CleanupError> {
    let path = target.as_path();
    let directory = quarantine.ok_or_else(|| CleanupError::NoQuarantine(path.to_owned()))?;
    let mut builder = fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed("mkdir", directory)(errno::from_io_error(&error)))?;
    for number in 0_u32.. {
        let new_path = directory.join(format!("{}-{number}", target.digest().short()));
        match renameat_with(parent, name, CWD, &new_path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(new_path),
            Err(Errno::EXIST) => {}
            Err(errno) => {
                let hint = if errno == Errno::XDEV {
                    "; hint: set --quarantine-dir to a directory on the same mount"
                } else {
                    ""
                };
                return Err(CleanupError::Call {
                    call: "rename to",
                    path: new_path,
                    errno,
                    hint,
                });
            }
        }
    }
    Err(failed("rename", path)(Errno::EXIST))
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(Errno) -> CleanupError {
    let path = path.to_owned();
    move |errno| CleanupError::Call {
        call,
        path,
        errno,
        hint: "",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::kubelet_paths::default_quarantine;

    struct Scene {
        _directory: tempfile::TempDir,
        target: TargetPath,
        quarantine: PathBuf,
    }

    fn scene() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let target = directory
            .path()
            .join("kubelet/pods/uid/volumes/kubernetes.io~csi/pv/mount");
        fs::create_dir_all(&target).unwrap();
        let target = TargetPath::new(&target).unwrap();
        Scene {
            quarantine: default_quarantine(&target, "driver").unwrap(),
            target,
            _directory: directory,
        }
    }

    impl Scene {
        fn remove_target(&self) -> Option<PathBuf> {
            remove_target(&self.target, Some(&self.quarantine)).unwrap()
        }
    }

    #[test]
    fn nested_empty_directories_are_removed() {
        let scene = scene();
        let target = scene.target.as_path();
        fs::create_dir_all(target.join("a/b/c")).unwrap();
        fs::create_dir_all(target.join("d")).unwrap();
        assert_eq!(scene.remove_target(), None);
        assert!(!target.exists() && target.parent().unwrap().exists());
        assert_eq!(scene.remove_target(), None, "again");
    }

    #[test]
    fn files_are_moved_to_a_new_path_each_time() {
        let scene = scene();
        let target = scene.target.as_path();
        let mut new_paths = Vec::new();
        for data in ["first", "second"] {
            fs::create_dir_all(target.join("empty/deeper")).unwrap();
            fs::create_dir_all(target.join("sub")).unwrap();
            fs::write(target.join("sub/file"), data).unwrap();
            let new_path = scene.remove_target().expect("there are files");
            assert!(!target.exists());
            assert!(new_path.starts_with(&scene.quarantine));
            assert!(new_path.join("empty/deeper").is_dir(), "moved as a whole");
            assert_eq!(fs::read_to_string(new_path.join("sub/file")).unwrap(), data);
            new_paths.push(new_path);
        }
        assert_ne!(new_paths[0], new_paths[1]);
        assert!(
            scene
                .quarantine
                .ends_with("kubelet/plugins/driver/quarantine")
        );
    }

    #[test]
    fn a_symbolic_link_is_moved_and_not_followed() {
        let scene = scene();
        let target = scene.target.as_path();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), target.join("link")).unwrap();
        let new_path = scene.remove_target().expect("there is a link");
        assert!(new_path.join("link").is_symlink());
        assert!(elsewhere.path().exists());
    }

    #[test]
    fn without_a_quarantine_directory_files_are_left() {
        let scene = scene();
        let file = scene.target.as_path().join("file");
        fs::write(&file, "data").unwrap();
        let error = remove_target(&scene.target, None).unwrap_err();
        assert!(error.is_volume_state(), "{error}");
        assert!(file.exists());
    }

    #[test]
    fn an_empty_target_file_is_removed_and_one_with_data_is_moved() {
        let scene = scene();
        let target = scene.target.as_path();
        fs::remove_dir(target).unwrap();
        fs::write(target, "").unwrap();
        assert_eq!(scene.remove_target(), None);
        assert!(!target.exists());
        fs::write(target, "data").unwrap();
        let new_path = scene.remove_target().expect("the file has data");
        assert_eq!(fs::read_to_string(new_path).unwrap(), "data");
    }
}
