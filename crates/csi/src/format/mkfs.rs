//! mkfs(8), on what was seen to be empty.

use std::ffi::OsStr;
use std::time::Duration;

use super::Wanted;
use super::decide::Said;
use super::error::FormatError;
use super::run::{self, Lock};
use super::{blkid, contents};

/// It writes little, but of a slow disk.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A volume that was seen to be empty, or to hold what was begun. There is no other way to mkfs.
#[derive(Debug)]
pub(crate) struct Make<'a>(Wanted<'a>);

impl<'a> Make<'a> {
    pub(super) fn of(wanted: Wanted<'a>) -> Result<Self, FormatError> {
        let (size, least) = (wanted.device.size()?, wanted.fstype.least());
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

    /// Makes the file system; it is on the disk, and seen to be there, when this returns.
    pub(crate) fn run(self) -> Result<(), FormatError> {
        let Wanted {
            device,
            image,
            fstype,
            ..
        } = self.0;
        let lock = Lock::of(image)?;
        // mkfs.btrfs claims the device itself, but for a moment only.
        if device.in_use_exclusively()? {
            return Err(FormatError::InUse {
                device: device.path().to_owned(),
            });
        }
        // It was looked at a moment ago.
        contents::same_size(device, image)?;
        let mut arguments: Vec<&OsStr> = fstype.options().iter().map(OsStr::new).collect();
        arguments.push(device.path().as_os_str());
        let ran = run::run(fstype.mkfs(), &arguments, Some(lock), LIMIT)?;
        if !ran.status.success() {
            return Err(FormatError::Failed {
                program: fstype.mkfs(),
                device: device.path().to_owned(),
                status: ran.status,
                said: ran.said(),
            });
        }
        let synced = contents::open(device).and_then(|device| device.sync_all());
        synced.map_err(|source| FormatError::Sync {
            device: device.path().to_owned(),
            source,
        })?;
        match blkid::probe(device)? {
            Said::Type(made) if made == fstype.to_string() => {
                tracing::info!("{}: {fstype} made", device.path().display());
                Ok(())
            }
            found => Err(FormatError::Unmade {
                device: device.path().to_owned(),
                wanted: fstype,
                found: found.to_string(),
            }),
        }
    }
}
