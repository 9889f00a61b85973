//! subPaths of volumes that a driver has mounted. As in kubelet, they are bind-mounted below the pod's directory, and
//! the runtime gets the bind mount, so that a workload can't redirect it by changing a path in the volume.
//!
//! The runtime resolves the subPaths of a deferred volume (docs/protocol.md, "subPath").

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo;
use crust_blockfs::subpath::{self, MissingPolicy, MountPointType};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::OperationError;
use super::directories::{create_directory, ignore_missing};

/// Resolves a subPath in a volume, creates the mount point, and bind-mounts the subPath there.
pub(crate) fn bind(
    volume: &Path,
    subpath: &Path,
    mount_point: &Path,
) -> Result<(), OperationError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, volume, flags, Mode::empty())
        .map_err(OperationError::system("open", volume))?;
    let resolved = subpath::resolve(&root, subpath, MissingPolicy::Create)?;
    // The previous run of the container may have left a mount of another file, or a mount point of another type.
    remove_bind(mount_point)?;
    match resolved.kind {
        MountPointType::Directory => create_directory(mount_point)?,
        MountPointType::File => {
            create_directory(mount_point.parent().unwrap_or(mount_point))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(CWD, mount_point, flags, Mode::RUSR | Mode::WUSR)
                .map_err(OperationError::system("open", mount_point))?;
        }
    }
    let tree_flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(&resolved.fd, "", tree_flags)
        .map_err(OperationError::system("open_tree", subpath))?;
    let move_flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&tree, "", CWD, mount_point, move_flags)
        .map_err(OperationError::system("move_mount", mount_point))
}

/// Unmounts the subPaths of a volume, and removes their directory.
pub(crate) fn unbind(bind_mounts: &Path) -> Result<(), OperationError> {
    // kubelet's layout: <volume>/<container>/<index>.
    for container in children(bind_mounts)? {
        for mount_point in children(&container)? {
            remove_bind(&mount_point)?;
        }
        ignore_missing("rmdir", &container, fs::remove_dir(&container))?;
    }
    ignore_missing("rmdir", bind_mounts, fs::remove_dir(bind_mounts))
}

/// Unmounts a subPath, and removes its mount point.
fn remove_bind(mount_point: &Path) -> Result<(), OperationError> {
    detach(mount_point)?;
    let removed = match fs::remove_dir(mount_point) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(mount_point),
        removed => removed,
    };
    ignore_missing("rmdir", mount_point, removed)
}

/// Unmounts the subPaths of all volumes of a pod.
pub(super) fn unbind_all(subpaths: &Path) -> Result<(), OperationError> {
    for volume in children(subpaths)? {
        unbind(&volume)?;
    }
    ignore_missing("rmdir", subpaths, fs::remove_dir(subpaths))
}

fn children(directory: &Path) -> Result<Vec<PathBuf>, OperationError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(OperationError::io("readdir", directory)(error)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: Result<Vec<_>, _> = paths.collect();
    paths.map_err(OperationError::io("readdir", directory))
}

/// Unmounts all mounts at a mount point, which may be stacked.
pub(super) fn detach(mount_point: &Path) -> Result<(), OperationError> {
    let mounts = mountinfo::read_own()?;
    for _ in mounts
        .iter()
        .filter(|mount| mount.mount_point == mount_point)
    {
        unmount(mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .map_err(OperationError::system("umount", mount_point))?;
    }
    Ok(())
}
