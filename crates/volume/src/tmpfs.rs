//! A small tmpfs for mount points that only root can access.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Makes a detached tmpfs.
pub(crate) fn detached() -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", "runcrust")?;
    fsconfig_set_string(context.as_fd(), "mode", "0700")?;
    fsconfig_set_string(context.as_fd(), "size", "64k")?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

pub(crate) fn is_tmpfs(directory: impl AsFd) -> Result<bool, Errno> {
    Ok(fstatfs(directory)?.f_type == libc::TMPFS_MAGIC)
}
