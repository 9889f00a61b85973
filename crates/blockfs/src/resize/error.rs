//! The sentence.

use std::path::PathBuf;

use rustix::io::Errno;

use super::Misfit;
use crate::device::{DeviceError, DeviceFacts};
use crate::errno::Name;

/// Why a file system has not been grown. The caller knows the volume.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// No size within the limits.
    #[error("device {device:?}: {misfit}")]
    Limits {
        /// Its path.
        device: PathBuf,
        /// The numbers.
        misfit: Misfit,
    },
    /// It can't grow, or not while it is mounted.
    #[error("{fstype} on {device:?} can't grow while it is mounted: {reason}")]
    Unsupported {
        /// Its path.
        device: PathBuf,
        /// What it is mounted as.
        fstype: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// As things are it can't be grown.
    #[error("{call}: {}: {reason}", Name(*errno))]
    Refused {
        /// With its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
        /// What that means here, and what to do.
        reason: &'static str,
    },
    /// A call failed otherwise.
    #[error("{call}: {}; hint: the kernel's log may say more", Name(*errno))]
    Call {
        /// With its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The device doesn't tell.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// An ioctl on a device's file system, for the sentence.
pub(super) fn ioctl(device: &DeviceFacts, name: impl std::fmt::Display) -> String {
    format!("ioctl({}, {name})", device.path().display())
}

/// The device can't be read.
pub(super) fn read_failed(device: &DeviceFacts, errno: Errno) -> ResizeError {
    let call = format!("read({})", device.path().display());
    ResizeError::Call { call, errno }
}

/// What an ioctl that grows a file system says to all of them.
pub(super) fn refusal(call: String, errno: Errno) -> ResizeError {
    let reason = match errno {
        Errno::ROFS => {
            "the file system, or every mount of it, is read-only; hint: did it become so after an \
             error? `crust stats` says"
        }
        Errno::BUSY | Errno::AGAIN => {
            "the file system is being resized, balanced or otherwise worked on; hint: try again \
             when that has ended"
        }
        _ => return ResizeError::Call { call, errno },
    };
    ResizeError::Refused {
        call,
        errno,
        reason,
    }
}
