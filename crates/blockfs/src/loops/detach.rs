//! An image's device goes, if nobody uses it.

use std::path::Path;
use std::time::Duration;

use crate::Deadline;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::LoopError;
use super::held::{Held, failed};
use super::holders::holders;
use super::image::Image;
use crate::device::Device;
use crate::sys::loops::{clear_loop, keep_loop, loop_status, set_read_only};

/// How long the kernel may take to let go of a device that nobody uses, and udev to look at it.
const CLOSING: Duration = Duration::from_secs(5);

/// Detaches an image's loop device; whether there was one.
///
/// Whoever has the device for himself (a mount in whatever namespace, device mapper, swap) is waited
/// for until `deadline`: the kernel unmounts a little later than umount(2) and kill(2) return. While
/// somebody has it, nothing is changed. Nor is it where the device is merely open, as a
/// container's raw volume is, and isn't closed within some seconds.
pub fn detach(image: &Path, deadline: Deadline) -> Result<bool, LoopError> {
    let image = Image::find(image)?;
    let _turn = image.turn(deadline)?;
    let Some(held) = Held::of(&image)? else {
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
    clear_loop(&claim).map_err(held.failed("ioctl(LOOP_CLR_FD)"))?;
    let Held { device, open, .. } = held;
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

/// Takes the detaching back: else the device would go from under whoever attaches the image next.
/// Whether there was something to be taken back.
fn stays(image: &Image, device: &Device) -> Result<bool, LoopError> {
    let Some(held) = Held::of(image)? else {
        return Ok(false);
    };
    match keep_loop(&held.open) {
        Ok(()) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(failed(device, "ioctl(LOOP_SET_STATUS64)", errno)),
    }
}

/// It is a device's number that is read-only, and would be for the next image, whoever's that is. Who has
/// the claim keeps others from attaching one meanwhile.
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
    set_read_only(&claim, false).map_err(|errno| failed(device, "ioctl(BLKROSET)", errno))
}
