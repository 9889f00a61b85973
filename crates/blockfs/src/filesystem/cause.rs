//! Translates an error of the mount API into its cause. The manual pages say little: found by trying.
//! Pure.

mod hint;

use rustix::io::Errno;

use super::context::MountCall;
use crate::contents::{Contents, KnownFormat};
use crate::fstypes;
use crate::options::FsOption;
use crate::signature::{Restriction, Signature};

/// The cause of a failed mount. It displays as a clause; [`MountErrorCause::hint`] returns the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountErrorCause {
    /// ENODEV of fsopen.
    #[error("this kernel doesn't know the file system {fstype}")]
    UnknownFileSystem {
        /// The type asked for.
        fstype: String,
    },
    /// An option the file system doesn't have, or a value that it doesn't take.
    #[error("{fstype} refuses the option")]
    BadOption {
        /// The type asked for.
        fstype: String,
        /// The option's name.
        option: String,
    },
    /// EINVAL, and the device is empty at all places where a file system has its first blocks or a
    /// backup of its superblock. What lies between wasn't read, so that no hint, of whatever cause, may
    /// suggest mkfs(8).
    #[error("the device holds no file system: there are only zeroes wherever one is looked for")]
    NoFileSystem {
        /// The type asked for.
        fstype: String,
    },
    /// EINVAL, and the device holds something that isn't the file system asked for.
    #[error("the device holds {}, not {fstype}", found.name)]
    SomethingElse {
        /// The type asked for.
        fstype: String,
        /// The entry of the signature table.
        found: &'static KnownFormat,
    },
    /// EINVAL, and there is no signature, but data.
    #[error(
        "the device holds no file system that is known here, and it isn't empty: byte {at} isn't 0"
    )]
    UnknownData {
        /// Offset of the first byte found, in bytes.
        at: u64,
    },
    /// EINVAL, and there is another.
    #[error("the device holds {found}, not {fstype}")]
    OtherFileSystem {
        /// The type asked for.
        fstype: String,
        /// What was found.
        found: &'static str,
    },
    /// EINVAL, and the right one is there: options that exclude each other, btrfs' bad options
    /// before Linux 6.8, features that the kernel doesn't know.
    #[error("the kernel refuses the device's {fstype}{}", with_options(options))]
    Unacceptable {
        /// The type asked for.
        fstype: String,
        /// All options that the file system got.
        options: Vec<String>,
    },
    /// EINVAL or EIO, and the file system ends behind the device.
    #[error("the device has {room} bytes, and the file system on it needs {size}")]
    Truncated {
        /// How large the file system is.
        size: u64,
        /// How large the device is.
        room: u64,
    },
    /// ENOENT, and the device is there: btrfs with `subvol=`, `subvolid=`.
    #[error("the file system has no subvolume that {option} means")]
    NoSubvolume {
        /// The option.
        option: String,
    },
    /// EEXIST of btrfs before Linux 6.7: the kernel keeps the devices that it has seen.
    #[error("the kernel remembers another device with the same file-system id")]
    Remembered,
    /// EBUSY.
    #[error("another user holds the device exclusively")]
    InUse,
    /// EBUSY of an exclusive creation.
    #[error("the device's file system is mounted already, perhaps in another mount namespace")]
    AlreadyMounted,
    /// EBUSY: one superblock can't be both.
    #[error("the device's file system is mounted {}, and {} was asked for", rw_name(!read_only), rw_name(*read_only))]
    ReadOnlyMismatch {
        /// The mode that was asked for.
        read_only: bool,
    },
    /// ENOENT, ENXIO, ENODEV.
    #[error("the device is gone")]
    NoDevice,
    /// ENOTBLK.
    #[error("that isn't a block device")]
    NotBlockDevice,
    /// EBADMSG.
    #[error("a checksum in the file system's metadata is wrong")]
    BadChecksum,
    /// EUCLEAN.
    #[error("the file system is corrupt")]
    Corrupt,
    /// EACCES: read-write on a device that is read-only.
    #[error("the device is read-only, and a read-write mount was asked for")]
    ReadOnlyDevice,
    /// EROFS: the journal wants to be replayed.
    #[error("the file system has a journal to replay, and the device can't be written to")]
    JournalOnReadOnlyDevice,
    /// EROFS or EACCES on a device that can be written to, in a state of the file system that the kernel
    /// refuses such mounts for.
    #[error("{}", .0.reason)]
    Restricted(&'static Restriction),
    /// EROFS, and neither the device nor the superblock explains it.
    #[error("the file system has to be written to, and the kernel says that it is read-only")]
    NotWritable,
    /// EINVAL of ext4 and btrfs, ENOSYS of xfs: the device's logical blocks are larger.
    #[error(
        "the file system reads and writes units of {sector} bytes, and the device has logical \
         blocks of {logical}"
    )]
    SmallSectors {
        /// The file system's, in bytes.
        sector: u64,
        /// The device's, in bytes.
        logical: u64,
    },
    /// EINVAL or ENOSYS: ext4 before Linux 6.19 and xfs before 6.12 want a block to fit a page.
    #[error(
        "the file system has blocks of {block} bytes, and this kernel's {fstype} none larger than a \
         page of {page}"
    )]
    LargeBlocks {
        /// The type asked for.
        fstype: String,
        /// The file system's, in bytes.
        block: u64,
        /// The kernel's, in bytes.
        page: u64,
    },
    /// EIO of a superblock that is there already, as another pod has it.
    #[error("the file system is mounted already, and was shut down after an error")]
    ShutDown,
    /// EIO.
    #[error("the device can't be read")]
    InputOutput,
    /// EPERM.
    #[error("the mount API needs CAP_SYS_ADMIN")]
    NotPermitted,
    /// Anything else.
    #[error("the kernel refuses")]
    Other,
}

fn with_options(options: &[String]) -> String {
    if options.is_empty() {
        return String::new();
    }
    format!(" with the options {}", options.join(","))
}

fn rw_name(read_only: bool) -> &'static str {
    if read_only { "read-only" } else { "read-write" }
}

/// The facts that are known besides the error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances<'a> {
    pub(super) fstype: &'a str,
    pub(super) read_only: bool,
    /// The options of the file system.
    pub(super) options: &'a [FsOption],
    pub(super) found: DeviceContents,
    /// The path still leads to the device.
    pub(super) is_there: bool,
    /// The device can't be written to.
    pub(super) is_read_only_device: bool,
    /// The size of the kernel's pages, in bytes.
    pub(super) page: u64,
}

impl Circumstances<'_> {
    /// Returns the state of the file system that explains an error.
    fn restriction(&self, errno: Errno) -> Option<MountErrorCause> {
        let restriction = match self.found {
            DeviceContents::A { signature, .. } => signature.restriction,
            _ => None,
        };
        let restriction = restriction.filter(|it| it.errno == errno);
        restriction.map(MountErrorCause::Restricted)
    }
}

/// The contents of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceContents {
    /// Nobody looked, or it couldn't be read.
    Unknown,
    /// Something that `probe` doesn't know, or nothing.
    Other(Contents),
    /// A file system that `probe` knows.
    A {
        signature: Signature,
        /// The device's size, in bytes.
        room: u64,
        /// The device's logical block, in bytes.
        logical: u64,
    },
}

pub(super) fn of(
    call: &MountCall,
    errno: Errno,
    log: &[String],
    around: &Circumstances<'_>,
) -> MountErrorCause {
    let fstype = around.fstype.to_owned();
    match (call, errno) {
        (_, Errno::PERM) => MountErrorCause::NotPermitted,
        (MountCall::Open, Errno::NODEV) => MountErrorCause::UnknownFileSystem { fstype },
        (MountCall::Option(option), _) => MountErrorCause::BadOption {
            fstype,
            option: option.key().to_owned(),
        },
        (MountCall::Create, Errno::INVAL) => invalid(log, around),
        (MountCall::Create, Errno::NOENT) if around.is_there => missing(around),
        (MountCall::Create, Errno::EXIST) => MountErrorCause::Remembered,
        (_, Errno::BUSY) => busy(log, around.read_only),
        (_, Errno::NOENT | Errno::NXIO | Errno::NODEV) => MountErrorCause::NoDevice,
        (_, Errno::NOTBLK) => MountErrorCause::NotBlockDevice,
        (_, Errno::BADMSG) => MountErrorCause::BadChecksum,
        (_, Errno::UCLEAN) => MountErrorCause::Corrupt,
        (_, Errno::ACCESS) => around
            .restriction(errno)
            .unwrap_or(MountErrorCause::ReadOnlyDevice),
        (_, Errno::ROFS) if around.is_read_only_device => MountErrorCause::JournalOnReadOnlyDevice,
        (_, Errno::ROFS) => around
            .restriction(errno)
            .unwrap_or(MountErrorCause::NotWritable),
        (MountCall::Create, Errno::NOSYS) => misfit(around).unwrap_or(MountErrorCause::Other),
        (MountCall::Mount | MountCall::Stat, Errno::IO) => MountErrorCause::ShutDown,
        (_, Errno::IO) => truncated(around.found).unwrap_or(MountErrorCause::InputOutput),
        _ => MountErrorCause::Other,
    }
}

fn invalid(log: &[String], around: &Circumstances<'_>) -> MountErrorCause {
    let fstype = around.fstype.to_owned();
    // Legacy file systems and option combinations are only looked at here.
    if let Some(option) = unknown_parameter(log) {
        return MountErrorCause::BadOption { fstype, option };
    }
    match around.found {
        DeviceContents::Other(Contents::Empty) => MountErrorCause::NoFileSystem { fstype },
        DeviceContents::Other(Contents::Data { at }) => MountErrorCause::UnknownData { at },
        DeviceContents::Other(Contents::Known(found)) if found.fstype != Some(around.fstype) => {
            MountErrorCause::SomethingElse { fstype, found }
        }
        DeviceContents::A { signature, .. }
            if !fstypes::is_mountable_as(signature.fstype, around.fstype) =>
        {
            let found = signature.fstype;
            MountErrorCause::OtherFileSystem { fstype, found }
        }
        found => truncated(found)
            .or_else(|| misfit(around))
            .unwrap_or_else(|| MountErrorCause::Unacceptable {
                fstype,
                options: around.options.iter().map(ToString::to_string).collect(),
            }),
    }
}

fn truncated(found: DeviceContents) -> Option<MountErrorCause> {
    match found {
        DeviceContents::A {
            signature: Signature { size, .. },
            room,
            ..
        } if room < size => Some(MountErrorCause::Truncated { size, room }),
        _ => None,
    }
}

/// Returns the cause if the file system's sectors are too small for the device, or its blocks too large
/// for the kernel.
fn misfit(around: &Circumstances<'_>) -> Option<MountErrorCause> {
    let DeviceContents::A {
        signature, logical, ..
    } = around.found
    else {
        return None;
    };
    let (sector, block, page) = (signature.sector, signature.block, around.page);
    if (1..logical).contains(&sector) {
        return Some(MountErrorCause::SmallSectors { sector, logical });
    }
    (block > page).then(|| MountErrorCause::LargeBlocks {
        fstype: around.fstype.to_owned(),
        block,
        page,
    })
}

/// Something in the file system isn't there, rather than the device.
fn missing(around: &Circumstances<'_>) -> MountErrorCause {
    let mut options = around.options.iter();
    let subvolume = options.rfind(|option| matches!(option.key(), "subvol" | "subvolid"));
    subvolume.map_or(MountErrorCause::Other, |option| {
        MountErrorCause::NoSubvolume {
            option: option.to_string(),
        }
    })
}

/// `ext4: Unknown parameter 'x'`, `Bad value for 'x'` (`fs/fs_parser.c`).
fn unknown_parameter(log: &[String]) -> Option<String> {
    log.iter().find_map(|message| {
        let (_, rest) = message
            .split_once("Unknown parameter '")
            .or_else(|| message.split_once("Bad value for '"))?;
        Some(rest.split('\'').next()?.to_owned())
    })
}

/// The three that are EBUSY differ by what the log says (fs/super.c); where it says nothing (before
/// Linux 5.13 or so) the general one is still true.
fn busy(log: &[String], read_only: bool) -> MountErrorCause {
    let says = |words: &str| log.iter().any(|message| message.contains(words));
    if says("would change RO state") {
        MountErrorCause::ReadOnlyMismatch { read_only }
    } else if says("reusing existing filesystem") {
        MountErrorCause::AlreadyMounted
    } else {
        MountErrorCause::InUse
    }
}

#[cfg(test)]
mod tests;
