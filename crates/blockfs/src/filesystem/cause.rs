//! Finds the cause of an error of the mount API. The manual pages say little about these errors; the meanings were
//! found by experiment. All functions are pure.

mod hint;

use rustix::io::Errno;

use super::context::MountCall;
use crate::contents::{Contents, KnownFormat};
use crate::fstypes;
use crate::options::FsOption;
use crate::signature::{Restriction, Signature};

/// The cause of a failed mount. It is displayed as a clause; [`MountErrorCause::hint`] returns the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountErrorCause {
    /// ENODEV of fsopen(2): the kernel doesn't have the file system, and no module of that name could be loaded.
    #[error("this kernel doesn't know the file system {fstype}")]
    UnknownFileSystem {
        /// The type that was asked for.
        fstype: String,
    },
    /// The file system doesn't have an option, or rejects its value.
    #[error("{fstype} refuses the option")]
    BadOption {
        /// The type that was asked for.
        fstype: String,
        /// The option's name, without its value.
        option: String,
    },
    /// EINVAL, and the device has only zeroes where file systems have their first blocks or a backup of the superblock.
    /// The rest of the device wasn't read. So no hint for any cause may suggest mkfs(8).
    #[error(
        "the device holds no file system: there are only zeroes in the places that are checked for one"
    )]
    NoFileSystem {
        /// The type that was asked for.
        fstype: String,
    },
    /// EINVAL, and the device holds something that isn't the file system that was asked for.
    #[error("the device holds {}, not {fstype}", found.name)]
    OtherContents {
        /// The type that was asked for.
        fstype: String,
        /// The row of the signature table that matched.
        found: &'static KnownFormat,
    },
    /// EINVAL, and the device holds data without a known signature.
    #[error("the device holds no known file system, and isn't empty: byte {offset} isn't 0")]
    UnknownData {
        /// Offset of the first byte found that isn't 0, in bytes.
        offset: u64,
    },
    /// EINVAL, and the device holds another file system.
    #[error("the device holds {found}, not {fstype}")]
    OtherFileSystem {
        /// The type that was asked for.
        fstype: String,
        /// The type that was found.
        found: &'static str,
    },
    /// EINVAL, and the device holds the file system that was asked for. Possible reasons are options that exclude each
    /// other, bad options of a btrfs before Linux 6.8, and features that the kernel doesn't know.
    #[error("the kernel refuses the device's {fstype}{}", with_options(options))]
    Rejected {
        /// The type that was asked for.
        fstype: String,
        /// All options that the file system was given, with their values.
        options: Vec<String>,
    },
    /// EINVAL or EIO, and the file system is larger than the device.
    #[error("the device has {device_size} bytes, and the file system on it needs {size}")]
    Truncated {
        /// Size of the file system in bytes.
        size: u64,
        /// Size of the device in bytes.
        device_size: u64,
    },
    /// ENOENT of btrfs, and the device exists: the file system lacks the subvolume that an option names.
    #[error("the file system has no subvolume that matches {option}")]
    NoSubvolume {
        /// The option `subvol` or `subvolid`, with its value.
        option: String,
    },
    /// EEXIST of btrfs before Linux 6.7. The kernel keeps a list of the devices that it has scanned.
    #[error("the kernel still lists another device with the same file-system id")]
    StaleBtrfsDevice,
    /// EBUSY, and the kernel's log has no other reason.
    #[error("another holder has opened the device exclusively")]
    InUse,
    /// EBUSY: an exclusive mount was asked for, and the device already has a superblock.
    #[error("the device's file system is mounted already, perhaps in another mount namespace")]
    AlreadyMounted,
    /// EBUSY: the device's superblock is read-only and a read-write mount was asked for, or the other way round.
    #[error("the device's file system is mounted {}, and {} was asked for", rw_name(!read_only), rw_name(*read_only))]
    ReadOnlyMismatch {
        /// Whether a read-only mount was asked for.
        read_only: bool,
    },
    /// ENOENT, ENXIO or ENODEV: the device doesn't exist any more.
    #[error("the device is gone")]
    NoDevice,
    /// ENOTBLK: the path doesn't lead to a block device any more.
    #[error("the path doesn't lead to a block device")]
    NotBlockDevice,
    /// EBADMSG: a checksum of metadata doesn't match.
    #[error("a checksum in the file system's metadata is wrong")]
    BadChecksum,
    /// EUCLEAN: metadata is inconsistent.
    #[error("the file system is corrupt")]
    Corrupt,
    /// EACCES: a read-write mount of a read-only device.
    #[error("the device is read-only, and a read-write mount was asked for")]
    ReadOnlyDevice,
    /// EROFS: the journal must be replayed, and the device is read-only.
    #[error("the file system has a journal to replay, and the device can't be written to")]
    JournalOnReadOnlyDevice,
    /// EROFS or EACCES on a writable device: the file system is in a state in which the kernel refuses such mounts.
    #[error("{}", .0.reason)]
    Restricted(&'static Restriction),
    /// EROFS, and neither the device nor the superblock explains it.
    #[error("the kernel has to write to the file system, and reports that it is read-only")]
    WriteRequired,
    /// EINVAL of ext4 and btrfs, ENOSYS of xfs: the device's logical blocks are larger than the file system's sectors.
    #[error(
        "the file system reads and writes units of {sector} bytes, and the device has logical \
         blocks of {logical_block}"
    )]
    SmallSectors {
        /// Size of the file system's sectors in bytes.
        sector: u64,
        /// Size of the device's logical blocks in bytes.
        logical_block: u64,
    },
    /// EINVAL or ENOSYS: the file system's blocks are larger than a page, which ext4 before Linux 6.19 and xfs before
    /// 6.12 don't support.
    #[error(
        "the file system has blocks of {block} bytes, and this kernel's {fstype} supports none larger than \
         a page of {page_size}"
    )]
    LargeBlocks {
        /// The type that was asked for.
        fstype: String,
        /// Size of the file system's blocks in bytes.
        block: u64,
        /// Size of the kernel's pages in bytes.
        page_size: u64,
    },
    /// EIO after the superblock was created: it existed already, because another pod uses the file system.
    #[error("the file system is mounted already, and was shut down after an error")]
    ShutDown,
    /// EIO: reading the device failed.
    #[error("the device can't be read")]
    ReadFailed,
    /// EPERM: the calling thread lacks a capability.
    #[error("the mount API needs CAP_SYS_ADMIN")]
    NotPermitted,
    /// Another error, of which only the errno is known.
    #[error("the kernel refuses the mount")]
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

/// The facts, besides the error, that determine the cause.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorContext<'a> {
    pub(super) fstype: &'a str,
    pub(super) read_only: bool,
    pub(super) options: &'a [FsOption],
    pub(super) contents: DeviceContents,
    /// Whether the path still leads to the device; false if that wasn't checked.
    pub(super) device_exists: bool,
    pub(super) is_read_only_device: bool,
    /// Size of the kernel's pages in bytes.
    pub(super) page_size: u64,
}

impl ErrorContext<'_> {
    /// Returns the cause if a state of the file system explains the error.
    fn restriction(&self, errno: Errno) -> Option<MountErrorCause> {
        let restriction = match self.contents {
            DeviceContents::FileSystem { signature, .. } => signature.restriction,
            _ => None,
        };
        let restriction = restriction.filter(|restriction| restriction.errno == errno);
        restriction.map(MountErrorCause::Restricted)
    }
}

/// The contents of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceContents {
    /// The device wasn't read, or couldn't be read.
    Unknown,
    /// No file system that `probe` knows: other contents, or none.
    Other(Contents),
    /// A file system that `probe` knows.
    FileSystem {
        signature: Signature,
        /// Size of the device in bytes.
        device_size: u64,
        /// Size of the device's logical blocks in bytes.
        logical_block: u64,
    },
}

/// Returns the cause of a failed call. `log` is the kernel's log of the file-system context.
pub(super) fn find_cause(
    call: &MountCall,
    errno: Errno,
    log: &[String],
    context: &ErrorContext<'_>,
) -> MountErrorCause {
    let fstype = context.fstype.to_owned();
    match (call, errno) {
        (_, Errno::PERM) => MountErrorCause::NotPermitted,
        (MountCall::Open, Errno::NODEV) => MountErrorCause::UnknownFileSystem { fstype },
        (MountCall::Option(option), _) => MountErrorCause::BadOption {
            fstype,
            option: option.key().to_owned(),
        },
        (MountCall::Create, Errno::INVAL) => cause_of_invalid(log, context),
        (MountCall::Create, Errno::NOENT) if context.device_exists => missing_object(context),
        (MountCall::Create, Errno::EXIST) => MountErrorCause::StaleBtrfsDevice,
        (_, Errno::BUSY) => cause_of_busy(log, context.read_only),
        (_, Errno::NOENT | Errno::NXIO | Errno::NODEV) => MountErrorCause::NoDevice,
        (_, Errno::NOTBLK) => MountErrorCause::NotBlockDevice,
        (_, Errno::BADMSG) => MountErrorCause::BadChecksum,
        (_, Errno::UCLEAN) => MountErrorCause::Corrupt,
        (_, Errno::ACCESS) => context
            .restriction(errno)
            .unwrap_or(MountErrorCause::ReadOnlyDevice),
        (_, Errno::ROFS) if context.is_read_only_device => MountErrorCause::JournalOnReadOnlyDevice,
        (_, Errno::ROFS) => context
            .restriction(errno)
            .unwrap_or(MountErrorCause::WriteRequired),
        (MountCall::Create, Errno::NOSYS) => {
            unsupported_unit(context).unwrap_or(MountErrorCause::Other)
        }
        (MountCall::Mount | MountCall::Stat, Errno::IO) => MountErrorCause::ShutDown,
        (_, Errno::IO) => truncated(context.contents).unwrap_or(MountErrorCause::ReadFailed),
        _ => MountErrorCause::Other,
    }
}

fn cause_of_invalid(log: &[String], context: &ErrorContext<'_>) -> MountErrorCause {
    let fstype = context.fstype.to_owned();
    // File systems with the legacy mount API check their options only now. All file systems check combinations of
    // options only now.
    if let Some(option) = unknown_parameter(log) {
        return MountErrorCause::BadOption { fstype, option };
    }
    match context.contents {
        DeviceContents::Other(Contents::Empty) => MountErrorCause::NoFileSystem { fstype },
        DeviceContents::Other(Contents::Data { offset }) => MountErrorCause::UnknownData { offset },
        DeviceContents::Other(Contents::Known(found)) if found.fstype != Some(context.fstype) => {
            MountErrorCause::OtherContents { fstype, found }
        }
        DeviceContents::FileSystem { signature, .. }
            if !fstypes::is_mountable_as(signature.fstype, context.fstype) =>
        {
            let found = signature.fstype;
            MountErrorCause::OtherFileSystem { fstype, found }
        }
        contents => truncated(contents)
            .or_else(|| unsupported_unit(context))
            .unwrap_or_else(|| MountErrorCause::Rejected {
                fstype,
                options: context.options.iter().map(ToString::to_string).collect(),
            }),
    }
}

fn truncated(contents: DeviceContents) -> Option<MountErrorCause> {
    match contents {
        DeviceContents::FileSystem {
            signature: Signature { size, .. },
            device_size,
            ..
        } if device_size < size => Some(MountErrorCause::Truncated { size, device_size }),
        _ => None,
    }
}

/// Returns the cause if the file system's sectors are too small for the device, or its blocks too large for the kernel.
fn unsupported_unit(context: &ErrorContext<'_>) -> Option<MountErrorCause> {
    let DeviceContents::FileSystem {
        signature,
        logical_block,
        ..
    } = context.contents
    else {
        return None;
    };
    let (sector, block, page_size) = (signature.sector, signature.block, context.page_size);
    if (1..logical_block).contains(&sector) {
        return Some(MountErrorCause::SmallSectors {
            sector,
            logical_block,
        });
    }
    (block > page_size).then(|| MountErrorCause::LargeBlocks {
        fstype: context.fstype.to_owned(),
        block,
        page_size,
    })
}

/// Returns the cause of ENOENT if the device exists: an object in the file system is missing.
fn missing_object(context: &ErrorContext<'_>) -> MountErrorCause {
    let mut options = context.options.iter();
    let subvolume = options.rfind(|option| matches!(option.key(), "subvol" | "subvolid"));
    subvolume.map_or(MountErrorCause::Other, |option| {
        MountErrorCause::NoSubvolume {
            option: option.to_string(),
        }
    })
}

/// Returns the option that the kernel's log names: `ext4: Unknown parameter 'x'` or `Bad value for 'x'`
/// (`fs/fs_parser.c`).
fn unknown_parameter(log: &[String]) -> Option<String> {
    log.iter().find_map(|message| {
        let (_, rest) = message
            .split_once("Unknown parameter '")
            .or_else(|| message.split_once("Bad value for '"))?;
        Some(rest.split('\'').next()?.to_owned())
    })
}

/// Returns the cause of EBUSY. The kernel's log distinguishes three causes (fs/super.c). If the log is empty, as before
/// Linux 5.13 or so, the general one is returned, which is true in any case.
fn cause_of_busy(log: &[String], read_only: bool) -> MountErrorCause {
    let has = |words: &str| log.iter().any(|message| message.contains(words));
    if has("would change RO state") {
        MountErrorCause::ReadOnlyMismatch { read_only }
    } else if has("reusing existing filesystem") {
        MountErrorCause::AlreadyMounted
    } else {
        MountErrorCause::InUse
    }
}

#[cfg(test)]
mod tests;
