//! Growing a mounted file system as far as its device reaches.
//!
//! The size of a file system is that of all its blocks, its own metadata included. Unlike the size of statfs(2) it can
//! be compared with the device's.

mod decide;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use decide::{InvalidLimits, SizeLimits, UnreachableSize};

use crate::device::{DeviceError, DeviceFacts};
use crate::fstypes::{self, FileSystemSize, FileSystemType, Growth, GrowthError};
use crate::probe;
use decide::ResizeDecision;

/// The error of a growth. The caller knows the volume.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// No size is within the limits.
    #[error("device {device:?}: {misfit}")]
    UnreachableSize {
        /// The device's path.
        device: PathBuf,
        /// The numbers.
        misfit: UnreachableSize,
    },
    /// It can't be grown.
    #[error(transparent)]
    Growth(#[from] GrowthError),
}

impl From<DeviceError> for ResizeError {
    fn from(error: DeviceError) -> Self {
        Self::Growth(error.into())
    }
}

/// Grows a mounted file system as far as its device and the limits allow, and gives back how many
/// bytes it has then. One that is that large already is left alone.
///
/// `root` is any directory or regular file of it, open for reading on a mount that can be written
/// to. The work is the kernel's, and goes on beside whoever writes.
pub fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &str,
    limits: SizeLimits,
) -> Result<u64, ResizeError> {
    let (known, growth) = growth(device, fstype)?;
    let present = || (growth.size)(root, device, known);
    let (capacity, before) = (device.size()?, present()?);
    let misfit = |misfit| self::misfit(device, misfit);
    let ResizeDecision::Grow(target) = decide::decide(capacity, before, limits).map_err(misfit)?
    else {
        return Ok(before.bytes);
    };
    (growth.grow)(root, device, before, target)?;
    // The kernel may have left out an end that is too small to be of use.
    let after = present()?.bytes;
    decide::check(capacity, after, limits).map_err(misfit)?;
    Ok(after)
}

/// Returns the size in bytes that [`grow`] would give a file system that isn't mounted yet, as far as
/// its superblock tells. Fails if this process couldn't grow it.
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
    // Where there is no such file system the mount will say so.
    let size = size.unwrap_or(FileSystemSize {
        bytes: 0,
        block: NonZeroU64::MIN,
        least: 0,
        most: u64::MAX,
        hint_above: "",
    });
    let step = decide::decide(device.size()?, size, limits);
    match step.map_err(|misfit| self::misfit(device, misfit))? {
        ResizeDecision::Stay => Ok(size.bytes),
        ResizeDecision::Grow(target) => {
            (growth.check_allowed)(device, target / size.block)?;
            Ok(target)
        }
    }
}

/// Returns how a type grows; an error for one that doesn't.
fn growth(
    device: &DeviceFacts,
    fstype: &str,
) -> Result<(&'static FileSystemType, &'static Growth), GrowthError> {
    const REASON: &str = "this version doesn't know how; hint: grow it with its own tool";
    let known = fstypes::find(fstype).and_then(|known| Some((known, known.growth?)));
    known.ok_or_else(|| GrowthError::unsupported(device, fstype, REASON))
}

fn misfit(device: &DeviceFacts, misfit: UnreachableSize) -> ResizeError {
    let device = device.path().to_owned();
    ResizeError::UnreachableSize { device, misfit }
}
