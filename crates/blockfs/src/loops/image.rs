//! The file that a loop device is to show.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::{Deadline, DeviceNumber};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, major, minor, open};
use rustix::io::{Errno, retry_on_intr};

use super::error::LoopError;
use crate::device::{kind_name, own_fd_path};
use crate::sys::loops::{LoopStatus, encoded};

/// An image, found once: whatever is made anew under its name is another one.
#[derive(Debug)]
pub(super) struct Image {
    path: PathBuf,
    /// `O_PATH`
    node: OwnedFd,
    device: u64,
    inode: u64,
}

/// Nobody else attaches or detaches the image, for as long as this lives.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "the open file is the lock")] OwnedFd);

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
            device: encoded(DeviceNumber::new(major(stat.st_dev), minor(stat.st_dev))),
            inode: stat.st_ino,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Whether a device is on this file. It keeps its file, so that the inode's number is no other's.
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

    /// Waits for whoever attaches or detaches it now.
    pub(super) fn turn(&self, deadline: Deadline) -> Result<Turn, LoopError> {
        // Of its own: a lock is an open file's, and that of a device lives as long as the device.
        let file = self.open(true)?;
        let lock = || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(())),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.failed("flock", errno)),
        };
        match deadline.poll(lock)? {
            Some(()) => Ok(Turn(file)),
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
