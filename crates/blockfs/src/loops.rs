//! Attaches image files to loop devices (loop(4)), for a driver whose volumes are files.
//!
//! The functions here are given the image alone. No record is kept of its device, because the kernel knows it, also
//! after a restart of the driver. The device is found by the image's file name and then verified by file system and
//! inode. The name must be unique among all files that are attached on the node. Devices with other names are not
//! queried, since a query never returns if the file's file system hangs.
//!
//! An image must not be renamed while it is attached, and must have no other hard link: its device isn't found by
//! another name.

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

/// Returns the loop device of an image; `None` if the image isn't attached.
pub fn find(image: &Path) -> Result<Option<LoopDevice>, LoopError> {
    let image = Image::find(image)?;
    let open = OpenLoop::find(&image)?;
    open.as_ref().map(OpenLoop::loop_device).transpose()
}

/// Returns all loop devices whose file has the image's name, in any directory and also if it has been unlinked. Use
/// [`find`] for the device of this image alone.
pub fn find_by_name(image: &Path) -> Result<Vec<Device>, LoopError> {
    Ok(Device::loop_devices_by_file_name(
        image.file_name().unwrap_or_default(),
    )?)
}

/// Returns whether a device is a loop device, whether or not a file is attached.
#[must_use]
pub fn is_loop(device: DeviceNumber) -> bool {
    device.major() == MAJOR
}

/// Returns whether a path leads to a loop device without a file, or to nothing: a device that was detached may have
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

/// The logical block size of every loop device, in bytes.
///
/// A file system is made for one size and needs it at each mount. For direct I/O on a disk with sectors of 4096 bytes,
/// kernels differ in their default (4096 since 6.14), and a volume has to survive an upgrade of the kernel. On a disk
/// that can't do direct I/O in units of 512 bytes, direct I/O isn't used.
const BLOCK_SIZE: u32 = 512;

/// The longest time to wait for other calls that attach devices. Each of them takes very little time.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Attaches an image to a loop device, with direct I/O if possible. The image stays attached until it is detached, even
/// if the device is opened and closed in between.
///
/// If the image is attached already, returns its device unchanged, whatever `read_only` says. Blocks for up to 10
/// seconds while other processes use the image or take the free devices.
pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice, LoopError> {
    let image = Image::find(image)?;
    let deadline = Deadline::after(ATTACH_TIMEOUT);
    let _lock = image.lock(deadline)?;
    let mut last_tried = None;
    let attached = deadline.poll(|| match find_and_keep(&image)? {
        Some(attached) => Ok(Some(attached)),
        None => attach_to_free_device(&image, read_only, &mut last_tried),
    })?;
    attached.ok_or_else(|| LoopError::NoneFree {
        image: image.path().to_owned(),
        device: last_tried.unwrap_or_default(),
    })
}

/// Returns the image's device, if it is attached. Cancels its detaching if the device waits for its last holder.
fn find_and_keep(image: &Image) -> Result<Option<LoopDevice>, LoopError> {
    let Some(open) = OpenLoop::find(image)? else {
        return Ok(None);
    };
    if open.status.flags & AUTOCLEAR != 0 {
        match clear_autoclear(&open.fd) {
            Ok(()) => {}
            // The device has been detached meanwhile.
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(open.failed("ioctl(LOOP_SET_STATUS64)")(errno)),
        }
    }
    open.loop_device().map(Some)
}

/// Attaches the image to a free device; `None` if another process took the device first. Sets `last_tried` to the
/// device's path.
fn attach_to_free_device(
    image: &Image,
    read_only: bool,
    last_tried: &mut Option<PathBuf>,
) -> Result<Option<LoopDevice>, LoopError> {
    let control_failed = |call| move |errno| LoopError::Control { call, errno };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = open(CONTROL, flags, Mode::empty()).map_err(control_failed("open"))?;
    let free = find_free_loop(&control).map_err(control_failed("ioctl(LOOP_CTL_GET_FREE)"))?;
    let Some(device) = Device::find_by_number(DeviceNumber::new(MAJOR, free))? else {
        // Another process has removed the device with LOOP_CTL_REMOVE.
        return Ok(None);
    };
    *last_tried = Some(device.path().to_owned());
    let opened = device.open_for_writing(OFlags::empty());
    let opened = opened.map_err(|errno| failed(&device, "open", errno))?;
    let file = image.open(read_only)?;
    let flags = if read_only { READ_ONLY } else { 0 };
    let configure = |flags| attach_loop(&opened, &file, image.path(), flags, BLOCK_SIZE);
    let result = match configure(flags | DIRECT_IO) {
        // Some kernels fail if direct I/O isn't possible, instead of doing without.
        Err(Errno::INVAL) => configure(flags),
        result => result,
    };
    match result {
        Ok(()) => {}
        Err(Errno::BUSY) => return Ok(None),
        Err(errno) => return Err(failed(&device, "ioctl(LOOP_CONFIGURE)", errno)),
    }
    if !read_only && device.is_read_only()? {
        // The flag belongs to the device number, and an earlier image with that number has left it set.
        let failed = |errno| failed(&device, "ioctl(BLKROSET)", errno);
        set_device_read_only(&opened, false).map_err(failed)?;
    }
    let open = OpenLoop::open_if_attached(device, image)?;
    open.as_ref().map(OpenLoop::loop_device).transpose()
}

/// The longest time that the kernel may take to release an unused device, and udev to read it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Detaches an image from its loop device, and returns whether it was attached.
///
/// Waits until `deadline` for exclusive holders of the device to go (a mount in any namespace, device mapper, swap):
/// the kernel finishes unmounting only after umount(2) or kill(2) has returned. If the device still has a holder then,
/// the image stays attached. It also stays attached if the device is merely open, like a container's raw block volume,
/// and isn't closed within 5 seconds.
pub fn detach(image: &Path, deadline: Deadline) -> Result<bool, LoopError> {
    let image = Image::find(image)?;
    let _lock = image.lock(deadline)?;
    let Some(open) = OpenLoop::find(&image)? else {
        return Ok(false);
    };
    let claimed = deadline.poll(|| match open.device.open_for_reading(OFlags::EXCL) {
        Ok(claim) => Ok(Some(claim)),
        Err(Errno::BUSY) => Ok(None),
        Err(errno) => Err(open.failed("open(O_EXCL)")(errno)),
    })?;
    let Some(claim) = claimed else {
        return Err(LoopError::InUse {
            image: image.path().to_owned(),
            device: open.device.path().to_owned(),
            holders: holders(&open.device),
        });
    };
    // From here on the device can't be mounted. It has been open since before the claim, so the image is still the one
    // that is attached.
    let backing_file = open.device.backing_file()?;
    detach_loop(&claim).map_err(open.failed("ioctl(LOOP_CLR_FD)"))?;
    let OpenLoop { device, fd, .. } = open;
    drop((fd, claim));
    let detached = Deadline::after(CLOSE_TIMEOUT).poll(|| {
        let is_detached = device.backing_file()? != backing_file;
        Ok::<_, LoopError>(is_detached.then_some(()))
    })?;
    if detached.is_none() && cancel_detach(&image, &device)? {
        return Err(LoopError::Open {
            image: image.path().to_owned(),
            device: device.path().to_owned(),
            holders: holders(&device),
        });
    }
    // The image is detached, so a device that stays read-only isn't an error of this call.
    if let Err(error) = make_writable(&device) {
        tracing::warn!("{error}; the next image that is attached to this device will be read-only");
    }
    Ok(true)
}

/// Cancels the detaching of a device that is still open, and returns whether the image is still attached. Otherwise the
/// device would be detached later, while the next caller of [`attach`] uses it.
fn cancel_detach(image: &Image, device: &Device) -> Result<bool, LoopError> {
    let Some(open) = OpenLoop::find(image)? else {
        return Ok(false);
    };
    match clear_autoclear(&open.fd) {
        Ok(()) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(failed(device, "ioctl(LOOP_SET_STATUS64)", errno)),
    }
}

/// Makes a detached device writable again. The read-only flag belongs to the device number, and would also apply to the
/// next image. An exclusive claim keeps other processes from attaching one meanwhile.
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

/// Makes the device of an attached image as large as the image is now, and returns its size in bytes.
pub fn refresh(image: &Path) -> Result<u64, LoopError> {
    let open = open_attached(image)?;
    update_loop_size(&open.fd).map_err(open.failed("ioctl(LOOP_SET_CAPACITY)"))?;
    Ok(open.device.size()?)
}

/// Makes the device of an attached image read-only or writable. A device whose image was attached read-only can't be
/// made writable.
pub fn set_read_only(image: &Path, read_only: bool) -> Result<(), LoopError> {
    let open = open_attached(image)?;
    let failed = open.failed("ioctl(BLKROSET)");
    set_device_read_only(&open.fd, read_only).map_err(failed)?;
    if open.device.is_read_only()? == read_only {
        return Ok(());
    }
    Err(LoopError::AttachedReadOnly {
        image: image.to_owned(),
        device: open.device.path().to_owned(),
    })
}

fn open_attached(image: &Path) -> Result<OpenLoop, LoopError> {
    let found = OpenLoop::find(&Image::find(image)?)?;
    found.ok_or_else(|| LoopError::NotAttached {
        image: image.to_owned(),
    })
}
