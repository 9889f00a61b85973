//! An image file, and the loop device that it is attached to.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, major, minor, open};
use rustix::io::{Errno, retry_on_intr};

use super::error::LoopError;
use crate::device::{Device, kind_name, own_fd_path};
use crate::sys::loops::{DIRECT_IO, LoopStatus, encode_device, loop_status};
use crate::{Deadline, DeviceNumber};

/// An image file, identified by its inode. A file that is created later with the same name is another image.
#[derive(Debug)]
pub(super) struct Image {
    path: PathBuf,
    /// Opened with `O_PATH`.
    node: OwnedFd,
    device: u64,
    inode: u64,
}

/// The lock of an image. No other process attaches or detaches the image while this value lives.
#[derive(Debug)]
pub(super) struct ImageLock(#[expect(dead_code, reason = "the open file is the lock")] OwnedFd);

impl Image {
    pub(super) fn find(path: &Path) -> Result<Self, LoopError> {
        let failed = |call| {
            move |errno| LoopError::Image {
                image: path.to_owned(),
                call,
                errno,
            }
        };
        // If the path were a symbolic link, the device's file would have another name than the path.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let stat = fstat(&node).map_err(failed("fstat"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(LoopError::NotAFile {
                image: path.to_owned(),
                kind: kind_name(kind),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            node,
            device: encode_device(DeviceNumber::new(major(stat.st_dev), minor(stat.st_dev))),
            inode: stat.st_ino,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns whether a device with this status is attached to this image. The device keeps its file open, so no other
    /// file can get the inode number.
    pub(super) fn is_attached(&self, status: &LoopStatus) -> bool {
        (status.file.device, status.file.inode) == (self.device, self.inode)
    }

    pub(super) fn open(&self, read_only: bool) -> Result<OwnedFd, LoopError> {
        let access = if read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        let flags = access | OFlags::CLOEXEC;
        retry_on_intr(|| open(own_fd_path(&self.node), flags, Mode::empty()))
            .map_err(|errno| self.failed("open", errno))
    }

    /// Waits until no other process attaches or detaches the image, and locks it.
    pub(super) fn lock(&self, deadline: Deadline) -> Result<ImageLock, LoopError> {
        // A flock(2) lock belongs to an open file. The open file that is attached lives as long as the device, so the
        // lock needs another one.
        let file = self.open(true)?;
        let lock = || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(())),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.failed("flock", errno)),
        };
        match deadline.poll(lock)? {
            Some(()) => Ok(ImageLock(file)),
            None => Err(LoopError::Locked {
                image: self.path.clone(),
            }),
        }
    }

    fn failed(&self, call: &'static str, errno: Errno) -> LoopError {
        LoopError::Image {
            image: self.path.clone(),
            call,
            errno,
        }
    }
}

/// The loop device of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// The path, such as `/dev/loop3`.
    pub device: PathBuf,
    /// The device number, such as 7:3.
    pub number: DeviceNumber,
    /// Whether the device refuses writes, because of [`set_read_only`](super::set_read_only) or because the image was
    /// attached read-only.
    pub read_only: bool,
    /// Whether I/O bypasses the page cache of the image.
    pub direct_io: bool,
}

/// The loop device of an image, held open. The kernel doesn't detach the image as long as a descriptor of the device is
/// open.
#[derive(Debug)]
pub(super) struct OpenLoop {
    pub(super) device: Device,
    pub(super) fd: OwnedFd,
    pub(super) status: LoopStatus,
}

impl OpenLoop {
    /// Finds and opens the device of an image; `None` if the image isn't attached.
    pub(super) fn find(image: &Image) -> Result<Option<Self>, LoopError> {
        let mut found: Option<Self> = None;
        for device in Device::loop_devices_by_file_name(image.name())? {
            let Some(open) = Self::open_if_attached(device, image)? else {
                continue;
            };
            if let Some(first) = found {
                return Err(LoopError::Twice {
                    image: image.path().to_owned(),
                    first: first.device.path().to_owned(),
                    second: open.device.path().to_owned(),
                });
            }
            found = Some(open);
        }
        match found {
            Some(open) if open.status.offset != 0 || open.status.size_limit != 0 => {
                Err(LoopError::Part {
                    image: image.path().to_owned(),
                    device: open.device.path().to_owned(),
                    offset: open.status.offset,
                    size_limit: open.status.size_limit,
                })
            }
            found => Ok(found),
        }
    }

    /// Opens a device if the image is attached to it; `None` if another file is attached, or no file any more.
    pub(super) fn open_if_attached(
        device: Device,
        image: &Image,
    ) -> Result<Option<Self>, LoopError> {
        let fd = match device.open_for_reading(OFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::NXIO | Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(failed(&device, "open", errno)),
        };
        match loop_status(&fd) {
            Ok(status) if image.is_attached(&status) => Ok(Some(Self { device, fd, status })),
            Ok(_) | Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(failed(&device, "ioctl(LOOP_GET_STATUS64)", errno)),
        }
    }

    pub(super) fn loop_device(&self) -> Result<LoopDevice, LoopError> {
        Ok(LoopDevice {
            device: self.device.path().to_owned(),
            number: self.device.number(),
            read_only: self.device.is_read_only()?,
            direct_io: self.status.flags & DIRECT_IO != 0,
        })
    }

    /// Returns a function that makes the error of a failed call on the device.
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
