//! Probes which file system a device holds, by its superblock. The result serves error sentences and the comparison of
//! UUIDs, and never chooses what is mounted.

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::device::DeviceFacts;
use crate::fstypes::{self, FILE_SYSTEMS};
pub use crate::signature::{Restriction, Signature, Uuid};

/// Whether the device's file system can't be mounted read-write at all, because of its type or of a
/// flag in its superblock. Reads the device.
pub fn is_read_only_by_nature(device: &DeviceFacts, fstype: &str) -> bool {
    if fstypes::is_read_only_type(fstype) {
        return true;
    }
    let found = signature(device).ok().flatten();
    found.is_some_and(|found| found.is_read_only)
}

/// Returns the superblock on a device, which is looked for once; see [`probe`].
pub(crate) fn signature(device: &DeviceFacts) -> Result<Option<Signature>, Errno> {
    device.signature(|opened| probe(opened))
}

/// Looks for the superblocks on an open device (or image); `None` when none of them is there,
/// which includes a device too small to hold one. Errors are pread(2)'s, EIO above all.
pub fn probe(device: impl AsFd) -> Result<Option<Signature>, Errno> {
    for superblock in FILE_SYSTEMS.iter().filter_map(|it| it.superblock.as_ref()) {
        if let Some(found) = superblock.read_from(&device)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
