//! Gives a target path back: removes what a runtime made there, and keeps what a workload wrote.
//!
//! The path itself is read, and no record is believed. kubelets without KEP-2857 make the
//! directories of subPaths in a deferred volume's target, and runtimes those of missing bind sources: they are
//! empty. A pod that ran under a handler without runcrust has written to the host's disk instead: nobody
//! else has those files, and kubelet's own rmdir would fail for ever.

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

/// A target path can't be given back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    /// A call failed.
    #[error("{call} {}: {}{hint}", path.display(), Name(*errno))]
    Call {
        /// Name of the system call.
        call: &'static str,
        path: PathBuf,
        /// Its error.
        errno: Errno,
        /// The next step, if there is one to tell.
        hint: &'static str,
    },
    /// Files are there, and no place is known for them.
    #[error(
        "{}: somebody has written files there, on the host; hint: --quarantine-dir says where they go, on the same mount",
        .0.display()
    )]
    NoQuarantine(PathBuf),
    /// Something is mounted below.
    #[error("{}: {what} is mounted there; hint: unmount it, it isn't this volume's", path.display())]
    MountBelow {
        /// Path of the mount point.
        path: PathBuf,
        /// File system and source of the mount.
        what: String,
    },
    /// The mount table can't be read.
    #[error(transparent)]
    MountInfo(#[from] MountInfoError),
}

impl CleanupError {
    /// Whether it is how things stand, and not a failure.
    pub(crate) fn is_state(&self) -> bool {
        match self {
            Self::Call { errno, .. } => matches!(*errno, Errno::BUSY | Errno::XDEV),
            Self::NoQuarantine(_) | Self::MountBelow { .. } => true,
            Self::MountInfo(_) => false,
        }
    }
}

/// Removes what is at a target path, where nothing is mounted any more; one that isn't there is fine. Returns where
/// files were moved to, if there were any. What is mounted below the path stays, and is an error.
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
        Err(errno) if is_none(errno) => return Ok(None),
        Err(errno) => return Err(failed("open", parent)(errno)),
    };
    let stat = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(errno) if is_none(errno) => return Ok(None),
        Err(errno) => return Err(failed("fstatat", path)(errno)),
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        // Neither is another file system looked into, nor moved away with its mount point.
        check_no_mount_below(path)?;
    }
    let removed = match kind {
        FileType::Directory if bare_directory::contents(path) == DirectoryContents::Bare => {
            remove_directories(&parent, name, path)
        }
        // What a block volume's device was bound to.
        FileType::RegularFile if stat.st_size == 0 => {
            unlinkat(&parent, name, AtFlags::empty()).map_err(failed("unlink", path))
        }
        _ => Err(failed("rmdir", path)(Errno::NOTEMPTY)),
    };
    match removed {
        Ok(()) => Ok(None),
        // Also of a directory in which somebody wrote while it was being removed.
        Err(CleanupError::Call {
            errno: Errno::NOTEMPTY,
            ..
        }) => move_to_quarantine(&parent, name, target, quarantine).map(Some),
        Err(error) => Err(error),
    }
}

/// Whether nothing is at a path, or what `clear` removes and nobody misses.
pub(crate) fn is_vacant(path: &Path, is_block: bool) -> bool {
    match fs::symlink_metadata(path) {
        Ok(there) if is_block => there.is_file() && there.len() == 0,
        Ok(there) => there.is_dir() && fs::read_dir(path).is_ok_and(|mut it| it.next().is_none()),
        // Whoever makes it finds out.
        Err(_) => true,
    }
}

/// Returns whether an error means that nothing is at a path, or can be.
fn is_none(errno: Errno) -> bool {
    let nothing = [Errno::NOENT, Errno::NOTDIR, Errno::NAMETOOLONG, Errno::LOOP];
    nothing.contains(&errno)
}

/// Removes a directory and the directories below it, the lowest first. Fails with `ENOTEMPTY` where anything else
/// is in it, and with `EBUSY` or `EXDEV` where something is mounted.
fn remove_directories(at: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), CleanupError> {
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(failed("rmdir", path)(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(at, name, flags, Mode::empty(), within);
    let directory = directory.map_err(failed("openat2(RESOLVE_NO_XDEV)", path))?;
    for below in names(&directory).map_err(failed("getdents64", path))? {
        match remove_directories(&directory, &below, &path.join(&below)) {
            // No directory: the one that it is in isn't empty.
            Err(CleanupError::Call {
                errno: Errno::NOTDIR,
                ..
            }) => return Err(failed("rmdir", path)(Errno::NOTEMPTY)),
            other => other?,
        }
    }
    unlinkat(at, name, AtFlags::REMOVEDIR).map_err(failed("rmdir", path))
}

/// Refuses a directory with a mount in it.
fn check_no_mount_below(directory: &Path) -> Result<(), CleanupError> {
    match mounts::mount_below(directory)? {
        None => Ok(()),
        Some(mounted) => Err(CleanupError::MountBelow {
            what: mounts::describe(&mounted),
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

/// Moves a target path's file or directory, whole, into the quarantine directory.
fn move_to_quarantine(
    parent: &OwnedFd,
    name: &OsStr,
    target: &TargetPath,
    quarantine: Option<&Path>,
) -> Result<PathBuf, CleanupError> {
    let path = target.as_path();
    let directory = quarantine.ok_or_else(|| CleanupError::NoQuarantine(path.to_owned()))?;
    let mut missing = fs::DirBuilder::new();
    missing
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed("mkdir", directory)(errno::of(&error)))?;
    for number in 0_u32.. {
        let place = directory.join(format!("{}-{number}", target.digest().short()));
        match renameat_with(parent, name, CWD, &place, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(place),
            Err(Errno::EXIST) => {}
            Err(errno) => {
                let hint = if errno == Errno::XDEV {
                    "; hint: it has to be on the same mount; --quarantine-dir says where it is"
                } else {
                    ""
                };
                return Err(CleanupError::Call {
                    call: "rename to",
                    path: place,
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
        _place: tempfile::TempDir,
        target: TargetPath,
        quarantine: PathBuf,
    }

    fn scene() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let target = place
            .path()
            .join("kubelet/pods/uid/volumes/kubernetes.io~csi/pv/mount");
        fs::create_dir_all(&target).unwrap();
        let target = TargetPath::new(&target).unwrap();
        Scene {
            quarantine: default_quarantine(&target, "driver").unwrap(),
            target,
            _place: place,
        }
    }

    impl Scene {
        fn clear(&self) -> Option<PathBuf> {
            remove_target(&self.target, Some(&self.quarantine)).unwrap()
        }
    }

    #[test]
    fn empty_directories_go_however_deep() {
        let scene = scene();
        let target = scene.target.as_path();
        fs::create_dir_all(target.join("a/b/c")).unwrap();
        fs::create_dir_all(target.join("d")).unwrap();
        assert_eq!(scene.clear(), None);
        assert!(!target.exists() && target.parent().unwrap().exists());
        assert_eq!(scene.clear(), None, "again");
    }

    #[test]
    fn files_are_moved_whole_and_each_time_to_a_place_of_their_own() {
        let scene = scene();
        let target = scene.target.as_path();
        let mut places = Vec::new();
        for data in ["first", "second"] {
            fs::create_dir_all(target.join("empty/deeper")).unwrap();
            fs::create_dir_all(target.join("sub")).unwrap();
            fs::write(target.join("sub/file"), data).unwrap();
            let place = scene.clear().expect("a place");
            assert!(!target.exists());
            assert!(place.starts_with(&scene.quarantine));
            assert!(place.join("empty/deeper").is_dir(), "whole");
            assert_eq!(fs::read_to_string(place.join("sub/file")).unwrap(), data);
            places.push(place);
        }
        assert_ne!(places[0], places[1]);
        assert!(
            scene
                .quarantine
                .ends_with("kubelet/plugins/driver/quarantine")
        );
    }

    #[test]
    fn a_link_is_not_followed_and_kept() {
        let scene = scene();
        let target = scene.target.as_path();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), target.join("link")).unwrap();
        let place = scene.clear().expect("a place");
        assert!(place.join("link").is_symlink());
        assert!(elsewhere.path().exists());
    }

    #[test]
    fn without_a_place_nothing_is_touched() {
        let scene = scene();
        let file = scene.target.as_path().join("file");
        fs::write(&file, "data").unwrap();
        let error = remove_target(&scene.target, None).unwrap_err();
        assert!(error.is_state(), "{error}");
        assert!(file.exists());
    }

    #[test]
    fn a_block_volumes_file_goes_unless_it_holds_data() {
        let scene = scene();
        let target = scene.target.as_path();
        fs::remove_dir(target).unwrap();
        fs::write(target, "").unwrap();
        assert_eq!(scene.clear(), None);
        assert!(!target.exists());
        fs::write(target, "data").unwrap();
        let place = scene.clear().expect("a place");
        assert_eq!(fs::read_to_string(place).unwrap(), "data");
    }
}
