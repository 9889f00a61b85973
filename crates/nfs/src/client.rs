//! This node's NFS client: the kernel's file system, and the daemon for the locks of version 3.

use std::os::fd::OwnedFd;
use std::path::Path;

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use crate::Share;
use crate::error::ShareMountError;

/// The file in which rpc.statd writes its pid (rpc.statd(8), "FILES").
const STATD_PID_FILE: &str = "/run/rpc.statd.pid";
/// The name of its process.
const STATD: &str = "rpc.statd";

/// Fails if the kernel has no client for shares of this type. It may load the module for this. Another error of the
/// kernel is left to the mount.
pub fn check_kernel(share: &Share, fstype: &str) -> Result<(), ShareMountError> {
    open_context(share, fstype).map(drop)
}

/// Opens a context for mounting a share. The inner error is one of the kernel, other than that it has no client.
pub(crate) fn open_context(
    share: &Share,
    fstype: &str,
) -> Result<Result<OwnedFd, Errno>, ShareMountError> {
    match fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC) {
        Err(Errno::NODEV) => Err(ShareMountError::NoClient {
            share: share.to_string(),
            fstype: fstype.to_owned(),
        }),
        opened => Ok(opened),
    }
}

/// Returns whether rpc.statd runs on this node. Without it, the kernel can't take locks on a server of version 3.
#[must_use]
pub fn has_statd() -> bool {
    let read = |path: &Path| bounded::read_to_string(path, MAX_KERNEL_VALUE).ok();
    let pid = read(Path::new(STATD_PID_FILE)).and_then(|text| text.trim().parse::<u32>().ok());
    let name = pid.and_then(|pid| read(Path::new(&format!("/proc/{pid}/comm"))));
    name.is_some_and(|name| name.trim_end() == STATD)
}
