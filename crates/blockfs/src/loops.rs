//! An image file as a block device (loop(4)), for a driver whose volumes are files.
//!
//! Nothing is kept of which device shows which image: the kernel knows, and tells it after a restart
//! of the driver too. So an image is all that a function here is given. Its device is found by the
//! image's name, which must be unique among all files that the node's loop devices show, and is then
//! compared by file system and inode. Others' loop devices are not asked, since one whose file system
//! hangs never answers.
//!
//! An image keeps its name while it is attached, and has that one only: by another it isn't found.

mod attach;
mod detach;
mod error;
mod held;
mod holders;
mod image;

use std::path::{Path, PathBuf};

pub use crate::DeviceNumber;
pub use attach::attach;
pub use detach::detach;
pub use error::LoopError;

use crate::device::{Device, DeviceError};
use crate::sys::loops::{refresh_loop, set_read_only as set_device_read_only};
use held::Held;
use image::Image;

/// An image's loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// `/dev/loop3`
    pub device: PathBuf,
    /// `7:3`
    pub number: DeviceNumber,
    /// It refuses writes, by [`set_read_only`] or because it was attached so.
    pub read_only: bool,
    /// What is written to it isn't kept in the page cache a second time, as the image's.
    pub direct_io: bool,
}

/// The loop device that shows an image, if there is one.
pub fn find(image: &Path) -> Result<Option<Attached>, LoopError> {
    let image = Image::find(image)?;
    let held = Held::of(&image)?;
    held.as_ref().map(Held::attached).transpose()
}

/// All loop devices that show a file of an image's name, also once it was unlinked. For questions that are
/// asked of what is there: [`find`] tells the image itself from what has its name.
pub fn named(image: &Path) -> Result<Vec<Device>, LoopError> {
    Ok(Device::loops_named(image.file_name().unwrap_or_default())?)
}

/// Whether a device is one of loop(4)'s, whatever it shows.
#[must_use]
pub fn is_loop(device: DeviceNumber) -> bool {
    /// `LOOP_MAJOR`
    const MAJOR: u32 = 7;
    device.major() == MAJOR
}

/// Whether at a path there is a loop device that shows nothing (any more): somebody has detached it, maybe
/// with its node.
pub fn is_idle(device: &Path) -> Result<bool, LoopError> {
    match Device::open(device) {
        Ok(device) => Ok(is_loop(device.number()) && device.backing_file()?.is_none()),
        Err(DeviceError::Missing { .. }) => Ok(true),
        Err(DeviceError::NotBlock { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes the device as large as its image is now, and gives back how many bytes that is.
pub fn refresh(image: &Path) -> Result<u64, LoopError> {
    let held = held(image)?;
    refresh_loop(&held.open).map_err(held.failed("ioctl(LOOP_SET_CAPACITY)"))?;
    Ok(held.device.size()?)
}

/// Has the device refuse writes, or take them (again). One whose image was attached read-only takes
/// none: that is an error.
pub fn set_read_only(image: &Path, read_only: bool) -> Result<(), LoopError> {
    let held = held(image)?;
    let failed = held.failed("ioctl(BLKROSET)");
    set_device_read_only(&held.open, read_only).map_err(failed)?;
    if held.device.is_read_only()? == read_only {
        return Ok(());
    }
    Err(LoopError::AttachedReadOnly {
        image: image.to_owned(),
        device: held.device.path().to_owned(),
    })
}

fn held(image: &Path) -> Result<Held, LoopError> {
    let found = Held::of(&Image::find(image)?)?;
    found.ok_or_else(|| LoopError::NotAttached {
        image: image.to_owned(),
    })
}
