//! The errors of attaching and detaching an image.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::device::DeviceError;
use crate::errno::Name;

/// The error of an image that can't be attached, detached or found.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// A call on the image failed.
    #[error("image {image:?}: {call}: {}{}", Name(*errno), image_hint(*errno))]
    Image {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// The name of the system call.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// The image's path leads to another kind of file.
    #[error(
        "image {image:?}: {kind}, not a file; hint: find out which program created it, and move it away"
    )]
    NotAFile {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// The kind of file, with an article.
        kind: &'static str,
    },
    /// Another process holds the image's lock.
    #[error(
        "image {image:?}: another process is attaching, detaching or formatting it, and has not finished in time; \
         hint: find the process with `lslocks`"
    )]
    Locked {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
    },
    /// A device can't be found or examined.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A call on a device failed.
    #[error("loop device {device:?}: {call}: {}{}", Name(*errno), call_hint(*errno))]
    Call {
        /// Path of the loop device in `/dev`.
        device: PathBuf,
        /// The name of the system call.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// The kernel can't be asked for a free device.
    #[error(
        "/dev/loop-control: {call}: {}; hint: check that the kernel module `loop` is loaded and that /dev is the \
         node's",
        Name(*errno)
    )]
    Control {
        /// The name of the system call.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// Every free device was taken by another process first.
    #[error(
        "image {image:?}: EBUSY: other processes took each free loop device first, most recently {device:?}; \
         hint: find the process that has it open with `fuser --verbose`"
    )]
    NoneFree {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// The path of the device that was tried last; empty if none was.
        device: PathBuf,
    },
    /// The image is attached to two devices. Two file systems on them would destroy each other.
    #[error(
        "image {image:?}: is attached to both {first:?} and {second:?}, but may only be attached to one; \
         hint: detach the one that is not in use (losetup --detach)"
    )]
    Twice {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// The path of one device.
        first: PathBuf,
        /// The path of the other device.
        second: PathBuf,
    },
    /// The image is only partly attached. [`attach`](super::attach) attaches whole images, so another program did this.
    #[error(
        "image {image:?}: another program has attached only a part of it to {device:?} \
         (offset {offset}, limit {size_limit}); hint: detach it (losetup --detach {})", device.display()
    )]
    Part {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// Path of the loop device in `/dev`.
        device: PathBuf,
        /// The offset of the part in bytes.
        offset: u64,
        /// The length of the part in bytes; 0 means up to the end of the image.
        size_limit: u64,
    },
    /// The device is in use, and can't be detached.
    #[error(
        "image {image:?}: {device:?} is in use: {}; \
         hint: find out where with `grep -lw {} /proc/[0-9]*/mountinfo` and `lsblk {}`",
        holders.as_deref().unwrap_or("mounted in some mount namespace, or another device lies on it"),
        device.display(), device.display()
    )]
    InUse {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// Path of the loop device in `/dev`.
        device: PathBuf,
        /// The holders of the device, as a clause; `None` if none was found.
        holders: Option<String>,
    },
    /// The device is open, though not exclusively, and can't be detached.
    #[error("image {image:?}: {device:?} stays attached: {}", describe_holders(device, holders.as_deref()))]
    Open {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// Path of the loop device in `/dev`.
        device: PathBuf,
        /// The holders of the device, as a clause; `None` if a process merely has it open.
        holders: Option<String>,
    },
    /// The image isn't attached.
    #[error("image {image:?}: is not attached to a loop device; hint: stage the volume first")]
    NotAttached {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
    },
    /// The image was attached read-only, so its device can't be made writable.
    #[error(
        "image {image:?}: {device:?} can't be made writable, because the image was attached read-only; \
         hint: unstage the volume and stage it again"
    )]
    AttachedReadOnly {
        /// Path of the image, as the caller gave it.
        image: PathBuf,
        /// Path of the loop device in `/dev`.
        device: PathBuf,
    },
}

impl LoopError {
    /// Returns whether nothing is wrong with the device or the image, and only a holder has to release it first.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::InUse { .. } | Self::Open { .. } | Self::Locked { .. }
        )
    }
}

fn describe_holders(device: &Path, holders: Option<&str>) -> String {
    let device = device.display();
    match holders {
        Some(holders) => format!(
            "{holders}; hint: release the device there first; `losetup --list` and `lsblk {device}` show where"
        ),
        None => {
            format!("a process has it open; hint: find the process with `fuser --verbose {device}`")
        }
    }
}

fn image_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => {
            "; hint: check that the data directory is the one that the image was created in"
        }
        Errno::ROFS | Errno::ACCESS | Errno::PERM => {
            "; hint: make the data directory writable, or publish the volume read-only"
        }
        _ => "",
    }
}

fn call_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOTTY | Errno::INVAL => {
            "; hint: boot Linux 5.8 or newer, which LOOP_CONFIGURE needs"
        }
        Errno::PERM | Errno::ACCESS => "; hint: run this with CAP_SYS_ADMIN on the node itself",
        _ => "",
    }
}
