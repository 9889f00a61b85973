//! The sentence.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::Cause;
use crate::device::DeviceNumber;
use crate::errno::Name;
use crate::options::FsOption;

/// Why there is no mount. Each is one sentence with the device, the
/// call and what to do; the caller knows the volume.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel refused.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// A btrfs whose id is another's that is mounted: the kernel knows them by that alone.
    #[error(
        "btrfs on {device:?}: its file-system id {fsid} is that of {other:?}, which is mounted \
         (/sys/fs/btrfs); hint: give a clone or restored snapshot an id of its own before it is \
         staged: btrfstune -u"
    )]
    Twin {
        /// The device's path.
        device: PathBuf,
        /// The id of both.
        fsid: String,
        /// What is mounted.
        other: PathBuf,
    },
    /// A btrfs on several devices; a volume has one.
    #[error(
        "btrfs on {device:?}: the file system lies on {count} devices, and a volume is one; \
         hint: btrfs device remove takes the others out of it, where it is mounted"
    )]
    ManyDevices {
        /// The device's path.
        device: PathBuf,
        /// How many.
        count: u64,
    },
    /// An ext3 or ext4 with its journal on another device, which the kernel would write to.
    #[error(
        "ext4 on {device:?}: its superblock has its journal on another device ({says}), and a \
         volume is one; hint: give it a journal of its own where no pod uses it: tune2fs -O \
         ^has_journal, then tune2fs -j; tune2fs -E mount_opts= clears options"
    )]
    ForeignJournal {
        /// Path of the volume's device.
        device: PathBuf,
        /// Name of the superblock's field that says so.
        says: &'static str,
    },
    /// The superblock that the kernel would read couldn't be read, and so couldn't be checked.
    #[error(
        "ext4 on {device:?}: the superblock at byte {offset} can't be checked before the mount: {why}; \
         hint: does the volume's option sb= (in units of 1 KiB) name a copy of the superblock (dumpe2fs)? \
         the kernel's log has a device's I/O errors"
    )]
    UncheckedSuperblock {
        /// Path of the volume's device.
        device: PathBuf,
        /// Offset on the device, in bytes.
        offset: u64,
        /// Reason why it can't be checked: a call with its error, or the missing superblock.
        why: String,
    },
    /// What is mounted isn't known.
    #[error("read {}: {source}; hint: is sysfs mounted at /sys?", directory.display())]
    Unreadable {
        /// In sysfs.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The device's path led the kernel to another device than us. That mount is gone again.
    #[error(
        "fsmount: {device:?} was device {expected} and is {mounted} now; \
         hint: was the device detached and attached again meanwhile? the next try looks again"
    )]
    Replaced {
        /// The device's path.
        device: PathBuf,
        /// What it was when it was found.
        expected: DeviceNumber,
        /// What the kernel mounted.
        mounted: DeviceNumber,
    },
}

impl MountError {
    /// What it comes down to, where the kernel said.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Refused(refusal) => Some(&refusal.cause),
            _ => None,
        }
    }

    /// Whether it is for certain that the file system's type or an option is wrong, and not the
    /// device or the node.
    #[must_use]
    pub fn is_the_callers(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                refusal.errno == Errno::INVAL
                    && matches!(
                        refusal.cause,
                        Cause::BadOption { .. } | Cause::OtherFileSystem { .. }
                    )
            }
            _ => false,
        }
    }
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}: {}; hint: {}", self.call(), Name(*errno), self.reason(), cause.hint())]
pub struct Refusal {
    /// The device's path, as it was given.
    pub device: PathBuf,
    /// The type asked for.
    pub fstype: String,
    /// Which call.
    pub call: Call,
    /// What it returned.
    pub errno: Errno,
    /// What that means here.
    pub cause: Cause,
    /// The context's log, first message first, without the levels.
    pub log: Vec<String>,
}

/// One of the calls that make a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// fsopen(2).
    Open,
    /// fsconfig(2) with the device.
    Source,
    /// fsconfig(2) with an option.
    Option(FsOption),
    /// fsconfig(2), `FSCONFIG_CMD_CREATE` or `…_CREATE_EXCL`.
    Create,
    /// fsmount(2).
    Mount,
    /// statx(2) of the new mount.
    Stat,
}

/// Quoted and escaped: a path may be any bytes, and the sentence stays on one line.
struct Quoted<'a>(&'a Path);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl Refusal {
    /// `fsconfig("/dev/loop3", ext4, "dax=maybe")`.
    fn call(&self) -> impl fmt::Display {
        let device = Quoted(&self.device);
        let fstype = &self.fstype;
        match &self.call {
            Call::Open => format!("fsopen({fstype}) for {device}"),
            Call::Source => format!("fsconfig({device}, {fstype}, source)"),
            Call::Option(option) => format!("fsconfig({device}, {fstype}, \"{option}\")"),
            Call::Create => format!("fsconfig({device}, {fstype}, create)"),
            Call::Mount => format!("fsmount({device}, {fstype})"),
            Call::Stat => format!("statx({device}, {fstype})"),
        }
    }

    /// Ours, with the kernel's words; of an option only the kernel's, which say as much.
    fn reason(&self) -> String {
        let log = self.log.join("; ");
        match self.cause {
            _ if log.is_empty() => self.cause.to_string(),
            Cause::BadOption { .. } => log,
            _ => format!("{} (kernel: {log})", self.cause),
        }
    }
}
