//! The sentence.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::cause::MountErrorCause;
use super::context::MountCall;
use crate::device::DeviceNumber;
use crate::errno::Name;
use crate::fstypes::UnfitDevice;

/// The error of a mount. It displays as one sentence with the device, the call and the next step; the caller knows the
/// volume.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel refused.
    #[error(transparent)]
    Call(Box<FailedMountCall>),
    /// The device's file system isn't mounted, whatever the kernel says.
    #[error(transparent)]
    Unfit(#[from] UnfitDevice),
    /// The device's path led the kernel to another device than us. That mount is gone again.
    #[error(
        "fsmount: {device:?} was device {expected} and is {mounted} now; \
         hint: was the device detached and attached again meanwhile? the next try looks again"
    )]
    Replaced {
        /// The device's path.
        device: PathBuf,
        /// The number that the device had when it was found.
        expected: DeviceNumber,
        /// The number of the device that the kernel mounted.
        mounted: DeviceNumber,
    },
}

impl MountError {
    /// Returns the cause, if the kernel has told it.
    #[must_use]
    pub fn cause(&self) -> Option<&MountErrorCause> {
        match self {
            Self::Call(refusal) => Some(&refusal.cause),
            _ => None,
        }
    }

    /// Whether it is for certain that the file system's type or an option is wrong, and not the
    /// device or the node.
    #[must_use]
    pub fn is_request_error(&self) -> bool {
        match self {
            Self::Call(refusal) => {
                refusal.errno == Errno::INVAL
                    && matches!(
                        refusal.cause,
                        MountErrorCause::BadOption { .. } | MountErrorCause::OtherFileSystem { .. }
                    )
            }
            _ => false,
        }
    }
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}: {}; hint: {}", self.call(), Name(*errno), self.reason(), cause.hint(fstype))]
pub struct FailedMountCall {
    /// The device's path, as it was given.
    pub device: PathBuf,
    /// The type asked for.
    pub fstype: String,
    /// The call.
    pub call: MountCall,
    /// The error number.
    pub errno: Errno,
    /// The meaning of the error.
    pub cause: MountErrorCause,
    /// The context's log, first message first, without the levels.
    pub log: Vec<String>,
}

/// Quoted and escaped: a path may be any bytes, and the sentence stays on one line.
struct Quoted<'a>(&'a Path);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl FailedMountCall {
    /// `fsconfig("/dev/loop3", ext4, "dax=maybe")`.
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

    /// Ours, with the kernel's words; of an option only the kernel's, which say as much.
    fn reason(&self) -> String {
        let log = self.log.join("; ");
        match self.cause {
            _ if log.is_empty() => self.cause.to_string(),
            MountErrorCause::BadOption { .. } => log,
            _ => format!("{} (kernel: {log})", self.cause),
        }
    }
}
