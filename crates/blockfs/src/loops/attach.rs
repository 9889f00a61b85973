//! An image gets a device, unless it has one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Deadline, DeviceNumber};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::Attached;
use super::error::LoopError;
use super::held::{Held, failed};
use super::image::Image;
use crate::device::Device;
use crate::sys::loops::{
    AUTOCLEAR, DIRECT_IO, READ_ONLY, configure_loop, free_loop, keep_loop, set_read_only,
};

const CONTROL: &str = "/dev/loop-control";

/// The major number of loop devices (Documentation/admin-guide/devices.txt).
const MAJOR: u32 = 7;

/// What a file system is made on, and asks for again at each mount. Kernels differ in what they
/// choose for direct I/O on a disk with sectors of 4096 bytes (since 6.14 it is those), and a volume
/// has to survive an upgrade of the kernel. Where that disk can't do direct I/O by 512, there is none.
const BLOCK_SIZE: u32 = 512;

/// For others that attach devices, of whom each call takes no time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Attaches an image as a loop device, with direct I/O where that works. It stays until it is
/// detached, whoever opens and closes it.
///
/// Where the image has a device already, that one is returned as it is, read-only or not.
pub fn attach(image: &Path, read_only: bool) -> Result<Attached, LoopError> {
    let image = Image::find(image)?;
    let deadline = Deadline::after(PATIENCE);
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

/// The image's device, if it has one. One that somebody wanted to detach, and still has open, stays.
fn kept(image: &Image) -> Result<Option<Attached>, LoopError> {
    let Some(held) = Held::of(image)? else {
        return Ok(None);
    };
    if held.status.flags & AUTOCLEAR != 0 {
        match keep_loop(&held.open) {
            Ok(()) => {}
            // It has gone meanwhile.
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(held.failed("ioctl(LOOP_SET_STATUS64)")(errno)),
        }
    }
    held.attached().map(Some)
}

/// `None` where somebody else was faster with the device that was free.
fn configured(
    image: &Image,
    read_only: bool,
    last: &mut Option<PathBuf>,
) -> Result<Option<Attached>, LoopError> {
    let control = |call| move |errno| LoopError::Control { call, errno };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let handle = open(CONTROL, flags, Mode::empty()).map_err(control("open"))?;
    let free = free_loop(&handle).map_err(control("ioctl(LOOP_CTL_GET_FREE)"))?;
    let Some(device) = Device::of_number(DeviceNumber::new(MAJOR, free))? else {
        // Removed again, by LOOP_CTL_REMOVE.
        return Ok(None);
    };
    *last = Some(device.path().to_owned());
    let opened = device.open_for_writing(OFlags::empty());
    let opened = opened.map_err(|errno| failed(&device, "open", errno))?;
    let file = image.open(read_only)?;
    let flags = if read_only { READ_ONLY } else { 0 };
    let configure = |flags| configure_loop(&opened, &file, image.path(), flags, BLOCK_SIZE);
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
        set_read_only(&opened, false).map_err(failed)?;
    }
    let held = Held::where_shown(device, image)?;
    held.as_ref().map(Held::attached).transpose()
}
