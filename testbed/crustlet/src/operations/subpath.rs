//! subPaths of volumes that a driver has mounted: bound below the pod's directory before the runtime hears of
//! them, as kubelet does, so that nobody can change meanwhile what they lead to.
//!
//! Those of a deferred volume are the runtime's to resolve (docs/protocol.md, "subPath").

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo;
use crust_blockfs::subpath::{self, Kind, Missing};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::OperationError;
use super::directories::{directory, gone};

/// Binds what a subPath leads to in a volume.
pub(crate) fn bind(volume: &Path, subpath: &Path, place: &Path) -> Result<(), OperationError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, volume, flags, Mode::empty())
        .map_err(OperationError::system("open", volume))?;
    let resolved = subpath::resolve(&root, subpath, Missing::Create)?;
    // One of the container's last run leads wherever it led then, and may have been of the other kind.
    take_away(place)?;
    match resolved.kind {
        Kind::Directory => directory(place)?,
        Kind::File => {
            directory(place.parent().unwrap_or(place))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(CWD, place, flags, Mode::RUSR | Mode::WUSR)
                .map_err(OperationError::system("open", place))?;
        }
    }
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree =
        open_tree(&resolved.fd, "", clone).map_err(OperationError::system("open_tree", subpath))?;
    let from = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&tree, "", CWD, place, from).map_err(OperationError::system("move_mount", place))
}

/// Unmounts all that was bound below a directory, and removes the directory.
pub(crate) fn unbind(binds: &Path) -> Result<(), OperationError> {
    // kubelet's way: <volume>/<container>/<index>
    for container in children(binds)? {
        for place in children(&container)? {
            take_away(&place)?;
        }
        gone("rmdir", &container, fs::remove_dir(&container))?;
    }
    gone("rmdir", binds, fs::remove_dir(binds))
}

/// Takes back what was bound at a place, and the place.
fn take_away(place: &Path) -> Result<(), OperationError> {
    detach(place)?;
    let removed = match fs::remove_dir(place) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(place),
        removed => removed,
    };
    gone("rmdir", place, removed)
}

/// The same of all volumes of a pod.
pub(super) fn unbind_all(subpaths: &Path) -> Result<(), OperationError> {
    for volume in children(subpaths)? {
        unbind(&volume)?;
    }
    gone("rmdir", subpaths, fs::remove_dir(subpaths))
}

fn children(directory: &Path) -> Result<Vec<PathBuf>, OperationError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(OperationError::io("readdir", directory)(error)),
    };
    let paths = entries.map(|entry| entry.map(|it| it.path()));
    let paths: Result<Vec<_>, _> = paths.collect();
    paths.map_err(OperationError::io("readdir", directory))
}

/// Takes back what is mounted at a place, as often as something is.
pub(super) fn detach(place: &Path) -> Result<(), OperationError> {
    let mounts = mountinfo::read_own()?;
    for _ in mounts.iter().filter(|mount| mount.mount_point == place) {
        unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .map_err(OperationError::system("umount", place))?;
    }
    Ok(())
}
