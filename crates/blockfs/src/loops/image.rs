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

/// An image file. A file that is created later under the same name is another image.
#[derive(Debug)]
pub(super) struct Image {
    path: PathBuf,
    /// `O_PATH`
    node: OwnedFd,
    device: u64,
    inode: u64,
}

/// The lock of an image: no other process attaches or detaches it while this value lives.
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
        // Of a link the device would have another name than the image.
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

    /// Whether a device is attached to this file. The device keeps the file open, so no other file gets its inode
    /// number.
    pub(super) fn is_shown(&self, status: &LoopStatus) -> bool {
        (status.file.device, status.file.inode) == (self.device, self.inode)
    }

    /// Opens the file itself.
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

    /// Waits for other processes that attach or detach the image, and locks it.
    pub(super) fn turn(&self, deadline: Deadline) -> Result<ImageLock, LoopError> {
        // Of its own: a lock is an open file's, and that of a device lives as long as the device.
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

/// An image's loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// `/dev/loop3`
    pub device: PathBuf,
    /// `7:3`
    pub number: DeviceNumber,
    /// Whether it refuses writes, by [`set_read_only`](super::set_read_only) or because it was attached read-only.
    pub read_only: bool,
    /// Whether writes bypass the page cache of the image.
    pub direct_io: bool,
}

/// The loop device of an image, kept open. As long as it is open it keeps the image: the kernel detaches it when it is
/// closed by all.
#[derive(Debug)]
pub(super) struct OpenLoop {
    pub(super) device: Device,
    pub(super) open: OwnedFd,
    pub(super) status: LoopStatus,
}

impl OpenLoop {
    /// Finds the device of an image, if it has one.
    pub(super) fn of(image: &Image) -> Result<Option<Self>, LoopError> {
        let mut found: Option<Self> = None;
        for device in Device::loop_devices_by_file_name(image.name())? {
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

    /// Opens a device that may be the image's; `None` if it has another file, or none any more.
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

    pub(super) fn attached(&self) -> Result<LoopDevice, LoopError> {
        Ok(LoopDevice {
            device: self.device.path().to_owned(),
            number: self.device.number(),
            read_only: self.device.is_read_only()?,
            direct_io: self.status.flags & DIRECT_IO != 0,
        })
    }

    /// Returns the error of a failed call on the device.
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
