//! The errors of attaching and detaching an image.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::device::DeviceError;
use crate::errno::Name;

/// The error of an image that can't be attached, detached or found.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The image can't be looked at.
    #[error("image {image:?}: {call}: {}{}", Name(*errno), image_hint(*errno))]
    Image {
        /// Its path.
        image: PathBuf,
        /// The call.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// It is something else.
    #[error("image {image:?}: {kind}, not a file; hint: what put it there?")]
    NotAFile {
        /// Its path.
        image: PathBuf,
        /// The kind of file that it is, with an article.
        kind: &'static str,
    },
    /// Somebody else has the image's lock.
    #[error(
        "image {image:?}: another process attaches, detaches or formats it and isn't done in time; \
         hint: `lslocks` shows which"
    )]
    Locked {
        /// Its path.
        image: PathBuf,
    },
    /// sysfs or the device's node.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A call on a device failed.
    #[error("loop device {device:?}: {call}: {}{}", Name(*errno), call_hint(*errno))]
    Call {
        /// `/dev/loop3`
        device: PathBuf,
        /// The call.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// There is nobody to ask for a device.
    #[error(
        "/dev/loop-control: {call}: {}; hint: is the module `loop` there, and is /dev the node's?",
        Name(*errno)
    )]
    Control {
        /// The call.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// Others were always faster.
    #[error(
        "image {image:?}: EBUSY: no loop device could be had in time, {device:?} was the last to be tried; \
         hint: `fuser --verbose` shows who has it open"
    )]
    NoneFree {
        /// Its path.
        image: PathBuf,
        /// `/dev/loop3`
        device: PathBuf,
    },
    /// Two file systems on them would destroy each other.
    #[error(
        "image {image:?}: is shown by {first:?} and by {second:?}, and must be by one alone; \
         hint: detach the one that nobody uses (losetup --detach)"
    )]
    Twice {
        /// Its path.
        image: PathBuf,
        /// `/dev/loop3`
        first: PathBuf,
        /// `/dev/loop4`
        second: PathBuf,
    },
    /// The driver attaches whole images.
    #[error(
        "image {image:?}: {device:?} shows a part of it (offset {offset}, limit {size_limit}), \
         which somebody else attached; hint: losetup --detach {}", device.display()
    )]
    Part {
        /// Its path.
        image: PathBuf,
        /// `/dev/loop3`
        device: PathBuf,
        /// In bytes.
        offset: u64,
        /// In bytes; 0 is all.
        size_limit: u64,
    },
    /// The device is in use, and can't be detached.
    #[error(
        "image {image:?}: {device:?} is in use: {}; \
         hint: `grep -lw {} /proc/[0-9]*/mountinfo` and `lsblk {}` show where",
        holders.as_deref().unwrap_or("mounted in some mount namespace, or another device lies on it"),
        device.display(), device.display()
    )]
    InUse {
        /// The image's path.
        image: PathBuf,
        /// `/dev/loop3`
        device: PathBuf,
        /// Its users, as far as they can be seen.
        holders: Option<String>,
    },
    /// Somebody has it open, though not exclusively.
    #[error("image {image:?}: {device:?} stays attached: {}", open_by(device, holders.as_deref()))]
    Open {
        /// Its path.
        image: PathBuf,
        /// `/dev/loop3`
        device: PathBuf,
        /// Its users, as far as they can be seen; without any, a process has it open.
        holders: Option<String>,
    },
    /// There is no device.
    #[error("image {image:?}: no loop device shows it; hint: it has to be staged first")]
    NotAttached {
        /// Its path.
        image: PathBuf,
    },
    /// The image itself is open for reading only.
    #[error(
        "image {image:?}: {device:?} can't be made writable, since the image was attached read-only; \
         hint: it has to be unstaged and staged again"
    )]
    AttachedReadOnly {
        /// Its path.
        image: PathBuf,
        /// `/dev/loop3`
        device: PathBuf,
    },
}

impl LoopError {
    /// Whether somebody has to let go of the device or the image first, and nothing is wrong with them.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::InUse { .. } | Self::Open { .. } | Self::Locked { .. }
        )
    }
}

fn open_by(device: &Path, holders: Option<&str>) -> String {
    let device = device.display();
    match holders {
        Some(holders) => format!(
            "{holders}; hint: release that first; `losetup --list` and `lsblk {device}` show it"
        ),
        None => format!("a process has it open; hint: `fuser --verbose {device}` shows which"),
    }
}

fn image_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "; hint: is the data directory the one it was made in?",
        Errno::ROFS | Errno::ACCESS | Errno::PERM => {
            "; hint: the data directory must be writable, or the volume published read-only"
        }
        _ => "",
    }
}

fn call_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOTTY | Errno::INVAL => "; hint: LOOP_CONFIGURE needs Linux 5.8",
        Errno::PERM | Errno::ACCESS => "; hint: this needs CAP_SYS_ADMIN and the node's devices",
        _ => "",
    }
}
