//! Prepares a volume's device for its mount. Checks the file system, as kubelet's mounters do, and makes one if the
//! volume is empty.
//!
//! mkfs over data is a mistake that can't be undone. So a volume only counts as empty if blkid(8) finds nothing and
//! every byte is 0. Anything unreadable or unknown is an error. And mkfs never runs on a volume: it writes to a new
//! file next to the empty image. The new file replaces the image when its file system is complete. An incomplete file
//! system never becomes a volume, and can simply be made again.
//!
//! Calls block until the programs that they run have ended.

mod blkid;
mod contents;
mod decide;
mod error;
mod fsck;
mod fstype;
mod mkfs;
mod run;
#[cfg(test)]
mod tests;

use std::path::Path;

use crust_blockfs::device::Device;
use crust_blockfs::loops;

pub(crate) use error::FormatError;
pub(crate) use fsck::Fsck;
pub(crate) use fstype::Fstype;
#[cfg(test)]
pub(crate) use fstype::fstype_named;
pub(crate) use mkfs::Mkfs;

use decide::RequiredStep;

/// A volume's device and its intended use. The caller must ensure that no other call stages or publishes the volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormatRequest<'a> {
    /// The loop device.
    pub(crate) device: &'a Device,
    /// The image that must be attached to the device.
    pub(crate) image: &'a Path,
    /// The requested file system.
    pub(crate) fstype: Fstype,
    /// Whether nothing may be written.
    pub(crate) read_only: bool,
}

/// The step that is required before the volume can be mounted.
#[derive(Debug)]
pub(crate) enum NextStep<'a> {
    /// None: the volume is mounted already, or can't be written to.
    Nothing,
    /// The volume has the requested file system, which has to be checked.
    Fsck(Fsck<'a>),
    /// The volume is empty, and needs a file system.
    Mkfs(Mkfs<'a>),
}

/// Inspects a volume without writing to it, and returns the required step.
pub(crate) fn inspect(request: FormatRequest<'_>) -> Result<NextStep<'_>, FormatError> {
    let FormatRequest { device, image, .. } = request;
    let attached = loops::find(image)?;
    if attached.is_none_or(|attached| attached.number != device.number()) {
        return Err(FormatError::DeviceMismatch {
            device: device.path().to_owned(),
            image: image.to_owned(),
        });
    }
    contents::same_size(device, image)?;
    let found = blkid::probe(device.path())?;
    let contents = || contents::read(device, image);
    let step = decide::decide(&found, contents, request.fstype)
        .map_err(|reason| FormatError::from_refusal(device, request.fstype, reason))?;
    // The sizes are compared again: if the image was truncated in the meantime, its contents were not read completely.
    contents::same_size(device, image)?;
    let read_only = request.read_only || device.is_read_only()?;
    match step {
        RequiredStep::Mkfs if read_only => Err(FormatError::EmptyAndReadOnly {
            device: device.path().to_owned(),
        }),
        RequiredStep::Mkfs if device.is_held_exclusively()? => Err(FormatError::InUse {
            device: device.path().to_owned(),
        }),
        RequiredStep::Mkfs => Mkfs::new(request).map(NextStep::Mkfs),
        RequiredStep::Fsck if read_only => Ok(NextStep::Nothing),
        RequiredStep::Fsck if device.is_held_exclusively()? => {
            tracing::debug!("{}: mounted already, not checked", device.path().display());
            Ok(NextStep::Nothing)
        }
        RequiredStep::Fsck => Ok(NextStep::Fsck(Fsck::new(request))),
    }
}
