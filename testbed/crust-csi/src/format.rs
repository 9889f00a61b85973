//! Prepares a volume's device for its mount: checks its file system, as kubelet's mounters do, and makes one where
//! there is nothing at all.
//!
//! mkfs over data is the one mistake that can't be mended. So nothing counts as empty but what was read to be: blkid(8)
//! finds nothing, and every byte is 0. Whatever can't be read or told is an error. And mkfs is never run on a volume at
//! all: it writes to a new file beside an empty one's image, which replaces that one once the file system is whole. A
//! half-made file system is never a volume's, and can be made anew without a question.
//!
//! Calls take as long as the programs that they run: they belong in threads that may wait.

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
#[cfg(test)]
pub(crate) use fstype::fstype_named;
pub(crate) use fstype::{DEFAULT, Fstype};
pub(crate) use mkfs::Mkfs;

use decide::RequiredStep;

/// A volume's device, and what it is wanted for. Nobody else stages or publishes the volume meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormatRequest<'a> {
    /// The loop device.
    pub(crate) device: &'a Device,
    /// The image that it shows.
    pub(crate) image: &'a Path,
    /// The file system that it has to have.
    pub(crate) fstype: Fstype,
    /// Nothing is to be written.
    pub(crate) read_only: bool,
}

/// The step that is needed before the volume can be mounted.
#[derive(Debug)]
pub(crate) enum NextStep<'a> {
    /// Nothing: it is mounted, or can only be read.
    Nothing,
    /// It holds what it should.
    Fsck(Fsck<'a>),
    /// It is empty.
    Mkfs(Mkfs<'a>),
}

/// Looks at a volume, and writes nothing.
pub(crate) fn inspect(wanted: FormatRequest<'_>) -> Result<NextStep<'_>, FormatError> {
    let FormatRequest { device, image, .. } = wanted;
    let attached = loops::find(image)?;
    if attached.is_none_or(|attached| attached.number != device.number()) {
        return Err(FormatError::DeviceMismatch {
            device: device.path().to_owned(),
            image: image.to_owned(),
        });
    }
    contents::same_size(device, image)?;
    let said = blkid::probe(device.path())?;
    let contents = || contents::read(device, image);
    let step = decide::decide(&said, contents, wanted.fstype)
        .map_err(|reason| FormatError::of(device, wanted.fstype, reason))?;
    // Again: of one that was cut meanwhile there is nothing to be read.
    contents::same_size(device, image)?;
    let read_only = wanted.read_only || device.is_read_only()?;
    match step {
        RequiredStep::Mkfs if read_only => Err(FormatError::EmptyAndReadOnly {
            device: device.path().to_owned(),
        }),
        RequiredStep::Mkfs if device.is_held_exclusively()? => Err(FormatError::InUse {
            device: device.path().to_owned(),
        }),
        RequiredStep::Mkfs => Mkfs::of(wanted).map(NextStep::Mkfs),
        RequiredStep::Fsck if read_only => Ok(NextStep::Nothing),
        RequiredStep::Fsck if device.is_held_exclusively()? => {
            tracing::debug!("{}: mounted already, not checked", device.path().display());
            Ok(NextStep::Nothing)
        }
        RequiredStep::Fsck => Ok(NextStep::Fsck(Fsck::of(wanted))),
    }
}
