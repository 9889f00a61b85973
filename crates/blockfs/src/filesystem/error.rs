//! The errors of a mount.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::cause::MountErrorCause;
use super::context::MountCall;
use crate::device::DeviceNumber;
use crate::errno::Name;
use crate::fstypes::UnfitDevice;

/// The error of a mount. It is displayed as one sentence with the device, the call and the next step. The caller adds
/// the volume's name.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A call of the mount API failed.
    #[error(transparent)]
    Call(Box<FailedMountCall>),
    /// The file system isn't mounted because of its superblock. The kernel might have mounted it.
    #[error(transparent)]
    Unfit(#[from] UnfitDevice),
    /// The kernel mounted another device than the requested one, because the path leads to another device now.
    /// The mount was undone.
    #[error(
        "fsmount: {device:?} was device {expected} and is {mounted} now; \
         hint: retry; the device was probably detached and attached again meanwhile"
    )]
    Replaced {
        /// Path of the device, as the caller gave it.
        device: PathBuf,
        /// Number of the device that was asked for.
        expected: DeviceNumber,
        /// Number of the device that the kernel mounted.
        mounted: DeviceNumber,
    },
}

impl MountError {
    /// Returns the cause if a call failed, and `None` otherwise.
    #[must_use]
    pub fn cause(&self) -> Option<&MountErrorCause> {
        match self {
            Self::Call(failed) => Some(&failed.cause),
            _ => None,
        }
    }

    /// Returns true if the request itself is certainly wrong: the file system's type or an option. Then neither the
    /// device nor the node is the cause.
    #[must_use]
    pub fn is_request_error(&self) -> bool {
        match self {
            Self::Call(failed) => {
                failed.errno == Errno::INVAL
                    && matches!(
                        failed.cause,
                        MountErrorCause::BadOption { .. } | MountErrorCause::OtherFileSystem { .. }
                    )
            }
            _ => false,
        }
    }
}

/// A failed call of the mount API.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}: {}; hint: {}", self.call(), Name(*errno), self.reason(), cause.hint(fstype))]
pub struct FailedMountCall {
    /// Path of the device, as the caller gave it.
    pub device: PathBuf,
    /// The type that was asked for.
    pub fstype: String,
    /// The call that failed.
    pub call: MountCall,
    /// The error of the call.
    pub errno: Errno,
    /// The probable cause of the error.
    pub cause: MountErrorCause,
    /// Messages from the kernel's log of the file-system context, oldest first, without the prefixes for the levels.
    pub log: Vec<String>,
}

/// Displays a path quoted and escaped, so that the message stays on one line.
struct Quoted<'a>(&'a Path);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl FailedMountCall {
    /// Returns the call for the error message, such as `fsconfig("/dev/loop3", ext4, "dax=maybe")`.
    fn call(&self) -> impl fmt::Display {
        let device = Quoted(&self.device);
        let fstype = &self.fstype;
        match &self.call {
            MountCall::Open => format!("fsopen({fstype}) for {device}"),
            MountCall::Source => format!("fsconfig({device}, {fstype}, source)"),
            MountCall::Option(option) => format!("fsconfig({device}, {fstype}, \"{option}\")"),
            MountCall::Create => format!("fsconfig({device}, {fstype}, create)"),
            MountCall::Mount => format!("fsmount({device}, {fstype})"),
            MountCall::Stat => format!("statx({device}, {fstype})"),
        }
    }

    /// Returns the cause with the kernel's messages. For an option that was refused, the kernel's messages are enough.
    fn reason(&self) -> String {
        let log = self.log.join("; ");
        match self.cause {
            _ if log.is_empty() => self.cause.to_string(),
            MountErrorCause::BadOption { .. } => log,
            _ => format!("{} (kernel: {log})", self.cause),
        }
    }
}
