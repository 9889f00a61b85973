//! An image file as a block device (loop(4)), for a driver whose volumes are files.
//!
//! Nothing is kept of which device shows which image: the kernel knows, and tells it after a restart
//! of the driver too. So an image is all that a function here is given. Its device is found by the
//! image's name, which must be unique among all files that the node's loop devices show, and is then
//! compared by file system and inode. Others' loop devices are not asked, since one whose file system
//! hangs never answers.
//!
//! An image keeps its name while it is attached, and has that one only: by another it isn't found.

mod error;
mod holders;
mod image;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

pub use crate::DeviceNumber;
pub use error::LoopError;
pub use image::LoopDevice;

use crate::Deadline;
use crate::device::{Device, DeviceError};
use crate::sys::loops::{
    AUTOCLEAR, DIRECT_IO, READ_ONLY, attach_loop, clear_autoclear, detach_loop, find_free_loop,
    loop_status, set_read_only as set_device_read_only, update_loop_size,
};
use holders::holders;
use image::{Image, OpenLoop, failed};

/// Returns the loop device of an image; `None` if it has none.
pub fn find(image: &Path) -> Result<Option<LoopDevice>, LoopError> {
    let image = Image::find(image)?;
    let held = OpenLoop::of(&image)?;
    held.as_ref().map(OpenLoop::attached).transpose()
}

/// Returns all loop devices of files that have the image's name, also of one that was unlinked. [`find`] tells the
/// image itself from other files of its name.
pub fn find_by_name(image: &Path) -> Result<Vec<Device>, LoopError> {
    Ok(Device::loop_devices_by_file_name(
        image.file_name().unwrap_or_default(),
    )?)
}

/// Whether a device is a loop device, attached to a file or not.
#[must_use]
pub fn is_loop(device: DeviceNumber) -> bool {
    /// `LOOP_MAJOR`
    const MAJOR: u32 = 7;
    device.major() == MAJOR
}

/// Whether the path of a loop device leads to one without a file, or to nothing: it was detached, and its node may have
/// been removed.
pub fn is_detached(device: &Path) -> Result<bool, LoopError> {
    match Device::open(device) {
        Ok(device) => Ok(is_loop(device.number()) && device.backing_file()?.is_none()),
        Err(DeviceError::Missing { .. }) => Ok(true),
        Err(DeviceError::NotBlock { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

const CONTROL: &str = "/dev/loop-control";

/// The major number of loop devices (Documentation/admin-guide/devices.txt).
const MAJOR: u32 = 7;

/// The logical block size of every loop device, in bytes. A file system is made for one size and needs it at each
/// mount. Kernels differ in their default for direct I/O on a disk with sectors of 4096 bytes (since 6.14 it is 4096),
/// and a volume has to survive an upgrade of the kernel. A disk that can't do direct I/O by 512 bytes is used without.
const BLOCK_SIZE: u32 = 512;

/// How long to wait for other calls that attach devices; each takes next to no time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Attaches an image as a loop device, with direct I/O where that works. It stays until it is
/// detached, whoever opens and closes it.
///
/// Where the image has a device already, that one is returned as it is, read-only or not.
pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice, LoopError> {
    let image = Image::find(image)?;
    let deadline = Deadline::after(TIMEOUT);
    let _turn = image.turn(deadline)?;
    let mut last = None;
    let attached = deadline.poll(|| match kept(&image)? {
        Some(attached) => Ok(Some(attached)),
        None => configured(&image, read_only, &mut last),
    })?;
    attached.ok_or_else(|| LoopError::NoneFree {
        image: image.path().to_owned(),
        device: last.unwrap_or_default(),
    })
}

/// Returns the image's device, if it has one. One that is about to be detached, and is still open, is kept.
fn kept(image: &Image) -> Result<Option<LoopDevice>, LoopError> {
    let Some(held) = OpenLoop::of(image)? else {
        return Ok(None);
    };
    if held.status.flags & AUTOCLEAR != 0 {
        match clear_autoclear(&held.open) {
            Ok(()) => {}
            // It has gone meanwhile.
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(held.failed("ioctl(LOOP_SET_STATUS64)")(errno)),
        }
    }
    held.attached().map(Some)
}

/// Attaches the image to a free device; `None` if another process was faster.
fn configured(
    image: &Image,
    read_only: bool,
    last: &mut Option<PathBuf>,
) -> Result<Option<LoopDevice>, LoopError> {
    let control = |call| move |errno| LoopError::Control { call, errno };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let handle = open(CONTROL, flags, Mode::empty()).map_err(control("open"))?;
    let free = find_free_loop(&handle).map_err(control("ioctl(LOOP_CTL_GET_FREE)"))?;
    let Some(device) = Device::find_by_number(DeviceNumber::new(MAJOR, free))? else {
        // Removed again, by LOOP_CTL_REMOVE.
        return Ok(None);
    };
    *last = Some(device.path().to_owned());
    let opened = device.open_for_writing(OFlags::empty());
    let opened = opened.map_err(|errno| failed(&device, "open", errno))?;
    let file = image.open(read_only)?;
    let flags = if read_only { READ_ONLY } else { 0 };
    let configure = |flags| attach_loop(&opened, &file, image.path(), flags, BLOCK_SIZE);
    let done = match configure(flags | DIRECT_IO) {
        // Not every kernel goes on without it by itself.
        Err(Errno::INVAL) => configure(flags),
        done => done,
    };
    match done {
        Ok(()) => {}
        Err(Errno::BUSY) => return Ok(None),
        Err(errno) => return Err(failed(&device, "ioctl(LOOP_CONFIGURE)", errno)),
    }
    if !read_only && device.is_read_only()? {
        // It is the number that is: whoever showed another file by it left it so.
        let failed = |errno| failed(&device, "ioctl(BLKROSET)", errno);
        set_device_read_only(&opened, false).map_err(failed)?;
    }
    let held = OpenLoop::where_shown(device, image)?;
    held.as_ref().map(OpenLoop::attached).transpose()
}

/// How long the kernel may take to release an unused device, and udev to read it.
const CLOSING: Duration = Duration::from_secs(5);

/// Detaches an image's loop device, and returns whether there was one.
///
/// Waits until `deadline` for exclusive holders of the device (a mount in any namespace, device mapper, swap): the
/// kernel unmounts a little later than umount(2) and kill(2) return. As long as there is a holder, nothing is changed.
/// The same holds for a device that is merely open, as a container's raw volume is, and isn't closed within some
/// seconds.
pub fn detach(image: &Path, deadline: Deadline) -> Result<bool, LoopError> {
    let image = Image::find(image)?;
    let _turn = image.turn(deadline)?;
    let Some(held) = OpenLoop::of(&image)? else {
        return Ok(false);
    };
    let claimed = deadline.poll(|| match held.device.open_for_reading(OFlags::EXCL) {
        Ok(claim) => Ok(Some(claim)),
        Err(Errno::BUSY) => Ok(None),
        Err(errno) => Err(held.failed("open(O_EXCL)")(errno)),
    })?;
    let Some(claim) = claimed else {
        return Err(LoopError::InUse {
            image: image.path().to_owned(),
            device: held.device.path().to_owned(),
            holders: holders(&held.device),
        });
    };
    // From here on nobody can mount it. `held` is open since before the claim, so that the device still
    // shows the image.
    let shown = held.device.backing_file()?;
    detach_loop(&claim).map_err(held.failed("ioctl(LOOP_CLR_FD)"))?;
    let OpenLoop { device, open, .. } = held;
    drop((open, claim));
    let gone = Deadline::after(CLOSING).poll(|| {
        let is_gone = device.backing_file()? != shown;
        Ok::<_, LoopError>(is_gone.then_some(()))
    })?;
    if gone.is_none() && stays(&image, &device)? {
        return Err(LoopError::Open {
            image: image.path().to_owned(),
            device: device.path().to_owned(),
            holders: holders(&device),
        });
    }
    // The image has no device any more, whatever that one is.
    if let Err(error) = make_writable(&device) {
        tracing::warn!("{error}; whoever attaches an image there finds it read-only");
    }
    Ok(true)
}

/// Cancels the detaching of a device that is still open, and returns whether there was something to cancel. Otherwise
/// the device would vanish while the next caller that attaches the image uses it.
fn stays(image: &Image, device: &Device) -> Result<bool, LoopError> {
    let Some(held) = OpenLoop::of(image)? else {
        return Ok(false);
    };
    match clear_autoclear(&held.open) {
        Ok(()) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(failed(device, "ioctl(LOOP_SET_STATUS64)", errno)),
    }
}

/// Makes a detached device writable again: the flag belongs to the device number, and would hold for the next image.
/// The exclusive claim keeps other processes from attaching one meanwhile.
fn make_writable(device: &Device) -> Result<(), LoopError> {
    if !device.is_read_only()? {
        return Ok(());
    }
    let Ok(claim) = device.open_for_reading(OFlags::EXCL) else {
        return Ok(());
    };
    if loop_status(&claim) != Err(Errno::NXIO) {
        return Ok(());
    }
    set_device_read_only(&claim, false).map_err(|errno| failed(device, "ioctl(BLKROSET)", errno))
}

/// Makes the device as large as its image is now, and returns its size in bytes.
pub fn refresh(image: &Path) -> Result<u64, LoopError> {
    let held = held(image)?;
    update_loop_size(&held.open).map_err(held.failed("ioctl(LOOP_SET_CAPACITY)"))?;
    Ok(held.device.size()?)
}

/// Makes the device read-only or writable. Fails for a device whose image was attached read-only and that is to become
/// writable.
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

fn held(image: &Path) -> Result<OpenLoop, LoopError> {
    let found = OpenLoop::of(&Image::find(image)?)?;
    found.ok_or_else(|| LoopError::NotAttached {
        image: image.to_owned(),
    })
}
