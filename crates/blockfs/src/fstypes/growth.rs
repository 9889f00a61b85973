//! Sizes of a file system and the errors of its growth, as far as its type decides them.

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;

use caps::errors::CapsError;
use caps::{CapSet, Capability};
use rustix::io::Errno;

use crate::device::{DeviceError, DeviceFacts};
use crate::errno::Name;
use crate::signature::Signature;

/// The size of a file system, and the sizes that it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystemSize {
    /// All of it, including what the file system keeps for itself.
    pub(crate) bytes: u64,
    /// Unit of the size in bytes.
    pub(crate) block: NonZeroU64,
    /// The smallest size that it can be resized to, in bytes.
    pub(crate) least: u64,
    /// The largest size that its format allows, in bytes.
    pub(crate) most: u64,
    /// The hint for a size above that, to be appended to the error message. Empty if the format has no such limit.
    pub(crate) hint_above: &'static str,
}

impl FileSystemSize {
    /// Returns the size that a superblock tells; `None` for blocks of no bytes, which ext4's may have.
    pub(crate) fn on_disk(found: &Signature) -> Option<Self> {
        Some(Self {
            bytes: found.size,
            block: NonZeroU64::new(found.block)?,
            least: 0,
            most: u64::MAX,
            hint_above: "",
        })
    }
}

/// A file system that can't be grown, whatever size is asked for. The caller knows the volume.
#[derive(Debug, thiserror::Error)]
pub enum GrowthError {
    /// It can't grow, or not while it is mounted.
    #[error("{fstype} on {device:?} can't grow while it is mounted: {reason}")]
    Unsupported {
        /// The device's path.
        device: PathBuf,
        /// The type that it is mounted as.
        fstype: String,
        /// The reason, and what to do.
        reason: &'static str,
    },
    /// It can't be grown in its present state.
    #[error("{call}: {}: {reason}", Name(*errno))]
    Refused {
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
        /// The meaning of the error, and the next step.
        reason: &'static str,
    },
    /// A call failed otherwise.
    #[error("{call}: {}; hint: the kernel's log may say more", Name(*errno))]
    Call {
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The device can't be asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl GrowthError {
    /// The error of a file system that can't grow while it is mounted.
    pub(crate) fn unsupported(device: &DeviceFacts, fstype: &str, reason: &'static str) -> Self {
        Self::Unsupported {
            device: device.path().to_owned(),
            fstype: fstype.to_owned(),
            reason,
        }
    }

    /// The error of a device that can't be read.
    pub(crate) fn read_failed(device: &DeviceFacts, errno: Errno) -> Self {
        let call = format!("read({})", device.path().display());
        Self::Call { call, errno }
    }

    /// The error of an ioctl that grows a file system, with what all types mean by it.
    pub(crate) fn refusal(call: String, errno: Errno) -> Self {
        let reason = match errno {
            Errno::ROFS => {
                "the file system, or every mount of it, is read-only; hint: did it become so after an \
                 error? `crust stats` says"
            }
            Errno::BUSY | Errno::AGAIN => {
                "the file system is being resized, balanced or otherwise worked on; hint: try again \
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

/// Names an ioctl on a device's file system, for a sentence.
pub(crate) fn ioctl(device: &DeviceFacts, name: impl fmt::Display) -> String {
    format!("ioctl({}, {name})", device.path().display())
}

/// Returns true if this thread may take a file system's reserves, and let an ext4 grow
/// (`CAP_SYS_RESOURCE`, `ext4_resize_begin`).
pub fn has_cap_sys_resource() -> Result<bool, CapsError> {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE)
}
