//! Grows a mounted file system to the size of its device.
//!
//! The size of a file system is that of all its blocks, including its own metadata. Unlike the size from statfs(2), it
//! can be compared with the size of the device.

mod decide;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use decide::{InvalidLimits, SizeLimits, UnreachableSize};

use crate::device::{DeviceError, DeviceFacts};
use crate::fstypes::{self, FileSystemSize, FileSystemType, Growth, GrowthError};
use crate::probe;
use decide::ResizeDecision;

/// The error of growing a file system. The caller adds the volume's name.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// No possible size is within the limits.
    #[error("device {device:?}: {reason}")]
    UnreachableSize {
        /// Path of the device.
        device: PathBuf,
        /// The reason, with the sizes.
        reason: UnreachableSize,
    },
    /// The file system can't be grown to any size.
    #[error(transparent)]
    Growth(#[from] GrowthError),
}

impl From<DeviceError> for ResizeError {
    fn from(error: DeviceError) -> Self {
        Self::Growth(error.into())
    }
}

/// Grows a mounted file system as far as its device and the limits allow. Returns its size in bytes afterwards. Does
/// nothing if the file system already has that size.
///
/// `root` is any directory or regular file of the file system, open for reading on a writable mount. Blocks until the
/// kernel has grown the file system; other processes can write to it at the same time.
pub fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &str,
    limits: SizeLimits,
) -> Result<u64, ResizeError> {
    let (known, growth) = growth(device, fstype)?;
    let present = || (growth.size)(root, device, known);
    let (capacity, before) = (device.size()?, present()?);
    let unreachable = |reason| unreachable(device, reason);
    let ResizeDecision::Grow(target) =
        decide::decide(capacity, before, limits).map_err(unreachable)?
    else {
        return Ok(before.bytes);
    };
    (growth.grow)(root, device, before, target)?;
    // The kernel may not use the end of the device if it is too small.
    let after = present()?.bytes;
    decide::check_limits(capacity, after, limits).map_err(unreachable)?;
    Ok(after)
}

/// Returns the size in bytes that a file system would have after [`grow`], according to its superblock on the device.
/// Meant for a file system that isn't mounted yet. Fails if this process couldn't grow it. Reads the device.
pub fn predict_size(
    device: &DeviceFacts,
    fstype: &str,
    limits: SizeLimits,
) -> Result<u64, ResizeError> {
    let (known, growth) = growth(device, fstype)?;
    let found = probe::signature(device);
    let found = found.map_err(|errno| GrowthError::read_failed(device, errno))?;
    let size = match found.filter(|found| known.can_mount(found.fstype)) {
        Some(found) => (growth.size_on_disk)(device, known, &found)?,
        None => None,
    };
    // If the device has no such file system, the mount will fail with a better error.
    let size = size.unwrap_or(FileSystemSize {
        bytes: 0,
        block_size: NonZeroU64::MIN,
        min_bytes: 0,
        max_bytes: u64::MAX,
        max_bytes_hint: "",
    });
    let decision = decide::decide(device.size()?, size, limits);
    match decision.map_err(|reason| unreachable(device, reason))? {
        ResizeDecision::Stay => Ok(size.bytes),
        ResizeDecision::Grow(target) => {
            (growth.check_allowed)(device, target / size.block_size)?;
            Ok(target)
        }
    }
}

/// Returns a type and the functions that grow it. Fails if file systems of this type can't grow.
fn growth(
    device: &DeviceFacts,
    fstype: &str,
) -> Result<(&'static FileSystemType, &'static Growth), GrowthError> {
    const REASON: &str = "this version of runcrust can't grow this type; hint: grow it with the file system's own tool";
    let known = fstypes::find(fstype).and_then(|known| Some((known, known.growth?)));
    known.ok_or_else(|| GrowthError::unsupported(device, fstype, REASON))
}

fn unreachable(device: &DeviceFacts, reason: UnreachableSize) -> ResizeError {
    let device = device.path().to_owned();
    ResizeError::UnreachableSize { device, reason }
}
