//! mkfs(8), beside what was seen to be empty.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::FormatRequest;
use super::decide::BlkidResult;
use super::error::FormatError;
use super::run::{self, ImageLock};
use super::{blkid, contents};

/// It writes little, but of a slow disk.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// A volume that was seen to be empty. There is no other way to mkfs.
#[derive(Debug)]
pub(crate) struct Mkfs<'a>(FormatRequest<'a>);

impl<'a> Mkfs<'a> {
    pub(super) fn of(wanted: FormatRequest<'a>) -> Result<Self, FormatError> {
        let (size, least) = (wanted.device.size()?, wanted.fstype.min_device_bytes());
        if size < least {
            return Err(FormatError::TooSmall {
                device: wanted.device.path().to_owned(),
                wanted: wanted.fstype,
                size,
                least,
            });
        }
        Ok(Self(wanted))
    }

    /// Makes the file system in a new file of the image's size, which is to take the image's place. When this
    /// returns it is on the disk, and seen to be there, and the volume is still empty.
    pub(crate) fn run(self, beside: &Path) -> Result<(), FormatError> {
        let FormatRequest {
            device,
            image,
            fstype,
            ..
        } = self.0;
        // The volume's: a driver that comes after this one waits for what it has left, before it begins another file.
        let lock = ImageLock::acquire(image)?;
        let format = fstype.format();
        let mut arguments: Vec<&OsStr> = format.options.iter().map(OsStr::new).collect();
        arguments.push(beside.as_os_str());
        let ran = run::run(format.mkfs, &arguments, Some(lock), TIMEOUT)?;
        if !ran.status.success() {
            return Err(FormatError::ProgramFailed {
                program: format.mkfs,
                place: beside.to_owned(),
                status: ran.status,
                said: ran.summary(),
            });
        }
        let synced = File::open(beside).and_then(|file| file.sync_all());
        synced.map_err(|source| FormatError::Sync {
            place: beside.to_owned(),
            source,
        })?;
        match blkid::probe(beside)? {
            BlkidResult::Type(made) if made == fstype.name() => {}
            found => {
                return Err(FormatError::WrongResult {
                    place: beside.to_owned(),
                    wanted: fstype,
                    found: found.to_string(),
                });
            }
        }
        // It was looked at before mkfs, and goes now.
        if device.is_held_exclusively()? {
            return Err(FormatError::InUse {
                device: device.path().to_owned(),
            });
        }
        let empty = contents::read(device, image).check_empty();
        empty.map_err(|reason| FormatError::of(device, fstype, reason))?;
        contents::same_size(device, image)?;
        tracing::info!("{}: {fstype} made", beside.display());
        Ok(())
    }
}
