//! Finds out which file system a device holds, by its superblock. The result is used in error messages and to compare
//! UUIDs. It never decides which type is mounted.

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::device::DeviceFacts;
use crate::fstypes::{self, FILE_SYSTEM_TYPES};
pub use crate::signature::{Restriction, Signature, Uuid};

/// Returns whether the device's file system can never be mounted read-write, because of its type or of a flag in its
/// superblock. Reads the device; an error of reading it counts as `false`.
pub fn is_always_read_only(device: &DeviceFacts, fstype: &str) -> bool {
    if fstypes::is_read_only_type(fstype) {
        return true;
    }
    let found = signature(device).ok().flatten();
    found.is_some_and(|found| found.is_read_only)
}

/// Returns the signature on a device. Probes the device at the first call and then returns the same result.
pub(crate) fn signature(device: &DeviceFacts) -> Result<Option<Signature>, Errno> {
    device.signature(|opened| probe(opened))
}

/// Returns the signature of the file system on an open device or image; `None` if it holds no known superblock or is
/// too small for one. Fails with the error of pread(2), usually EIO.
pub fn probe(device: impl AsFd) -> Result<Option<Signature>, Errno> {
    for superblock in FILE_SYSTEM_TYPES
        .iter()
        .filter_map(|known| known.superblock.as_ref())
    {
        if let Some(found) = superblock.read_from(&device)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
