//! The loop device of an image, kept from going while it is looked at.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Attached;
use super::error::LoopError;
use super::image::Image;
use crate::device::Device;
use crate::sys::loops::{DIRECT_IO, LoopStatus, loop_status};

/// A loop device that was seen to show an image. As long as it is open it shows that image: whoever
/// detaches it detaches it when the last one closes it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) device: Device,
    pub(super) open: OwnedFd,
    pub(super) status: LoopStatus,
}

impl Held {
    /// The device of an image, if it has one.
    pub(super) fn of(image: &Image) -> Result<Option<Self>, LoopError> {
        let mut found: Option<Self> = None;
        for device in Device::loops_named(image.name())? {
            let Some(held) = Self::where_shown(device, image)? else {
                continue;
            };
            if let Some(first) = found {
                return Err(LoopError::Twice {
                    image: image.path().to_owned(),
                    first: first.device.path().to_owned(),
                    second: held.device.path().to_owned(),
                });
            }
            found = Some(held);
        }
        match found {
            Some(held) if held.status.offset != 0 || held.status.size_limit != 0 => {
                Err(LoopError::Part {
                    image: image.path().to_owned(),
                    device: held.device.path().to_owned(),
                    offset: held.status.offset,
                    size_limit: held.status.size_limit,
                })
            }
            found => Ok(found),
        }
    }

    /// `None` where it shows another file, or nothing any more.
    pub(super) fn where_shown(device: Device, image: &Image) -> Result<Option<Self>, LoopError> {
        let open = match device.open_for_reading(OFlags::empty()) {
            Ok(open) => open,
            Err(Errno::NXIO | Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(failed(&device, "open", errno)),
        };
        match loop_status(&open) {
            Ok(status) if image.is_shown(&status) => Ok(Some(Self {
                device,
                open,
                status,
            })),
            Ok(_) | Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(failed(&device, "ioctl(LOOP_GET_STATUS64)", errno)),
        }
    }

    pub(super) fn attached(&self) -> Result<Attached, LoopError> {
        Ok(Attached {
            device: self.device.path().to_owned(),
            number: self.device.number(),
            read_only: self.device.is_read_only()?,
            direct_io: self.status.flags & DIRECT_IO != 0,
        })
    }

    /// What became of a call on it.
    pub(super) fn failed(&self, call: &'static str) -> impl Fn(Errno) -> LoopError + use<> {
        let device = self.device.path().to_owned();
        move |errno| LoopError::Call {
            device: device.clone(),
            call,
            errno,
        }
    }
}

pub(super) fn failed(device: &Device, call: &'static str, errno: Errno) -> LoopError {
    LoopError::Call {
        device: device.path().to_owned(),
        call,
        errno,
    }
}
