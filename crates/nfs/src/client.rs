//! This node's NFS client: the kernel's file system, and the daemon for the locks of version 3.

use std::path::Path;

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

/// The file in which rpc.statd writes its pid (rpc.statd(8), "FILES").
const STATD_PID_FILE: &str = "/run/rpc.statd.pid";
/// The name of its process.
const STATD: &str = "rpc.statd";

/// Returns which file system types of NFS the kernel has. It may load their modules for this.
pub fn find_kernel_types() -> Result<Vec<&'static str>, Errno> {
    let mut found = Vec::new();
    for fstype in crate::FSTYPES {
        match fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_) => found.push(fstype),
            Err(Errno::NODEV) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

/// Returns whether rpc.statd runs on this node. Without it, the kernel can't take locks on a server of version 3.
#[must_use]
pub fn has_statd() -> bool {
    let read = |path: &Path| bounded::read_to_string(path, MAX_KERNEL_VALUE).ok();
    let pid = read(Path::new(STATD_PID_FILE)).and_then(|text| text.trim().parse::<u32>().ok());
    let name = pid.and_then(|pid| read(Path::new(&format!("/proc/{pid}/comm"))));
    name.is_some_and(|name| name.trim_end() == STATD)
}
