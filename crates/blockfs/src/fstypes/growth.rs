//! The size of a file system, and the errors of growing it that depend on its type.

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;

use caps::errors::CapsError;
use caps::{CapSet, Capability};
use rustix::io::Errno;

use crate::device::{DeviceError, DeviceFacts};
use crate::errno::Name;
use crate::signature::Signature;

/// The size of a file system, and the limits of its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystemSize {
    /// Present size in bytes, including the file system's own metadata.
    pub(crate) bytes: u64,
    /// Size of a block in bytes: the size of the file system is a multiple of it.
    pub(crate) block_size: NonZeroU64,
    /// Minimum size in bytes that the file system can be resized to.
    pub(crate) min_bytes: u64,
    /// Maximum size in bytes that the file system's format allows.
    pub(crate) max_bytes: u64,
    /// Hint for a size above `max_bytes`, to be appended to the error message. It is empty if the format has no such
    /// limit.
    pub(crate) max_bytes_hint: &'static str,
}

impl FileSystemSize {
    /// Returns the size in a superblock; `None` if its block size is 0, which is possible in the superblock of an ext4.
    pub(crate) fn on_disk(found: &Signature) -> Option<Self> {
        Some(Self {
            bytes: found.size,
            block_size: NonZeroU64::new(found.block)?,
            min_bytes: 0,
            max_bytes: u64::MAX,
            max_bytes_hint: "",
        })
    }
}

/// The error for a file system that can't be grown to any size. The caller adds the volume's name.
#[derive(Debug, thiserror::Error)]
pub enum GrowthError {
    /// The file system can't grow, or can't grow while it is mounted.
    #[error("{fstype} on {device:?} can't grow while it is mounted: {reason}")]
    Unsupported {
        /// Path of the device.
        device: PathBuf,
        /// The type that the file system is mounted as.
        fstype: String,
        /// The reason and a hint.
        reason: &'static str,
    },
    /// The kernel refused to grow the file system in its present state.
    #[error("{call}: {}: {reason}", Name(*errno))]
    Refused {
        /// The call with its arguments.
        call: String,
        /// The error of the call.
        errno: Errno,
        /// The meaning of the error and a hint.
        reason: &'static str,
    },
    /// A call failed for another reason.
    #[error("{call}: {}; hint: see the kernel's log (dmesg)", Name(*errno))]
    Call {
        /// The call with its arguments.
        call: String,
        /// The error of the call.
        errno: Errno,
    },
    /// The device's size couldn't be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl GrowthError {
    /// Returns the error for a file system that can't grow while it is mounted.
    pub(crate) fn unsupported(device: &DeviceFacts, fstype: &str, reason: &'static str) -> Self {
        Self::Unsupported {
            device: device.path().to_owned(),
            fstype: fstype.to_owned(),
            reason,
        }
    }

    /// Returns the error for a device that can't be read.
    pub(crate) fn read_failed(device: &DeviceFacts, errno: Errno) -> Self {
        let call = format!("read({})", device.path().display());
        Self::Call { call, errno }
    }

    /// Returns the error for a failed ioctl that grows a file system. It explains the errors that mean the same for all
    /// types.
    pub(crate) fn ioctl_failed(call: String, errno: Errno) -> Self {
        let reason = match errno {
            Errno::ROFS => {
                "the file system, or every mount of it, is read-only; hint: run `runcrust crust stats`, which reports \
                 whether it became read-only after an error"
            }
            Errno::BUSY | Errno::AGAIN => {
                "the file system is being resized or balanced, or has another exclusive operation; hint: retry \
                 when that has ended"
            }
            _ => return Self::Call { call, errno },
        };
        Self::Refused {
            call,
            errno,
            reason,
        }
    }
}

/// Returns an ioctl on a device's file system as in an error message.
pub(crate) fn ioctl(device: &DeviceFacts, name: impl fmt::Display) -> String {
    format!("ioctl({}, {name})", device.path().display())
}

/// Returns true if the calling thread has `CAP_SYS_RESOURCE`, which growing an ext4 needs (`ext4_resize_begin`). Fails
/// if the thread's capabilities can't be read.
pub fn has_cap_sys_resource() -> Result<bool, CapsError> {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE)
}
