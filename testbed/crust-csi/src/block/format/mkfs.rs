//! Runs mkfs(8) on a new image next to the empty image of a volume.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::FormatRequest;
use super::decide::BlkidResult;
use super::error::FormatError;
use super::run::{self, ImageLock};
use super::{blkid, contents};

/// mkfs writes little, but the disk can be slow.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// An mkfs for a volume that was found to be empty. mkfs is not run in any other way.
#[derive(Debug)]
pub(crate) struct Mkfs<'a>(FormatRequest<'a>);

impl<'a> Mkfs<'a> {
    pub(super) fn new(request: FormatRequest<'a>) -> Result<Self, FormatError> {
        let (size, least) = (request.device.size()?, request.fstype.min_device_bytes());
        if size < least {
            return Err(FormatError::TooSmall {
                device: request.device.path().to_owned(),
                requested: request.fstype,
                size,
                least,
            });
        }
        Ok(Self(request))
    }

    /// Makes the file system in a file of the image's size, which is to replace the image. On success the file system
    /// is on disk and was found by blkid, and the volume is still empty.
    pub(crate) fn run(self, replacement: &Path) -> Result<(), FormatError> {
        let FormatRequest {
            device,
            image,
            fstype,
            ..
        } = self.0;
        // Locks the volume's image, not the replacement: a restarted driver waits for this mkfs before it makes a new
        // file.
        let lock = ImageLock::acquire(image)?;
        let format = fstype.format();
        let mut arguments: Vec<&OsStr> = format.options.iter().map(OsStr::new).collect();
        arguments.push(replacement.as_os_str());
        let ran = run::run(format.mkfs, &arguments, Some(lock), TIMEOUT)?;
        if !ran.status.success() {
            return Err(FormatError::ProgramFailed {
                program: format.mkfs,
                path: replacement.to_owned(),
                status: ran.status,
                output: ran.summary(),
            });
        }
        let synced = File::open(replacement).and_then(|file| file.sync_all());
        synced.map_err(|source| FormatError::Sync {
            path: replacement.to_owned(),
            source,
        })?;
        match blkid::probe(replacement)? {
            BlkidResult::Type(made) if made == fstype.name() => {}
            found => {
                return Err(FormatError::WrongResult {
                    path: replacement.to_owned(),
                    requested: fstype,
                    found: found.to_string(),
                });
            }
        }
        // The volume was inspected before mkfs, and its image is about to be replaced.
        if device.is_held_exclusively()? {
            return Err(FormatError::InUse {
                device: device.path().to_owned(),
            });
        }
        let empty = contents::read(device, image).check_empty();
        empty.map_err(|reason| FormatError::from_refusal(device, fstype, reason))?;
        contents::same_size(device, image)?;
        tracing::info!("{}: {fstype} made", replacement.display());
        Ok(())
    }
}
