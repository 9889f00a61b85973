//! What an error of the mount API means. The manual pages say little: found by trying. Pure.

use rustix::io::Errno;

use super::Call;
use crate::probe::Kind;

/// Why a file system wasn't mounted. Displays as a clause; [`Cause::hint`] says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
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
    /// EINVAL, and no magic number of a known file system is there.
    #[error("the device holds no file system that is known here")]
    NoFileSystem {
        /// The type asked for.
        fstype: String,
    },
    /// EINVAL, and there is another.
    #[error("the device holds {found}, not {fstype}")]
    OtherFileSystem {
        /// The type asked for.
        fstype: String,
        /// What is there.
        found: Kind,
    },
    /// EINVAL, and the right one is there.
    #[error("the device holds {fstype}, and the kernel refuses it with these options")]
    Unacceptable {
        /// The type asked for.
        fstype: String,
    },
    /// EINVAL of xfs with the right magic number, most often a second UUID.
    #[error(
        "the device holds xfs, and the kernel refuses it: most often its UUID is mounted already"
    )]
    UnacceptableXfs,
    /// EBUSY.
    #[error("somebody else has the device for itself")]
    InUse,
    /// EBUSY of an exclusive creation.
    #[error("the device's file system is mounted already, perhaps in another mount namespace")]
    AlreadyMounted,
    /// EBUSY: one superblock can't be both.
    #[error("the device's file system is mounted {}, and {} was asked for", rw_name(!read_only), rw_name(*read_only))]
    ReadOnlyMismatch {
        /// What was asked for.
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

fn rw_name(read_only: bool) -> &'static str {
    if read_only { "read-only" } else { "read-write" }
}

/// What is known besides the error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances<'a> {
    pub(super) fstype: &'a str,
    pub(super) read_only: bool,
    pub(super) found: Found,
}

/// What the device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody looked, or it couldn't be read.
    Unknown,
    /// None of the magic numbers we know.
    Nothing,
    /// This.
    A(Kind),
}

pub(super) fn of(call: &Call, errno: Errno, log: &[String], around: &Circumstances<'_>) -> Cause {
    let fstype = around.fstype.to_owned();
    match (call, errno) {
        (_, Errno::PERM) => Cause::NotPermitted,
        (Call::Open, Errno::NODEV) => Cause::UnknownFileSystem { fstype },
        (Call::Option(option), _) => Cause::BadOption {
            fstype,
            option: option.key().to_owned(),
        },
        (Call::Create, Errno::INVAL) => invalid(log, around),
        (_, Errno::BUSY) => busy(log, around.read_only),
        (_, Errno::NOENT | Errno::NXIO | Errno::NODEV) => Cause::NoDevice,
        (_, Errno::NOTBLK) => Cause::NotBlockDevice,
        (_, Errno::BADMSG) => Cause::BadChecksum,
        (_, Errno::UCLEAN) => Cause::Corrupt,
        (_, Errno::ACCESS) => Cause::ReadOnlyDevice,
        (_, Errno::ROFS) => Cause::JournalOnReadOnlyDevice,
        (_, Errno::IO) => Cause::InputOutput,
        _ => Cause::Other,
    }
}

fn invalid(log: &[String], around: &Circumstances<'_>) -> Cause {
    let fstype = around.fstype.to_owned();
    // Legacy file systems and option combinations are only looked at here.
    if let Some(option) = unknown_parameter(log) {
        return Cause::BadOption { fstype, option };
    }
    match around.found {
        Found::Nothing => Cause::NoFileSystem { fstype },
        Found::A(found) if !found.is_mounted_as(around.fstype) => {
            Cause::OtherFileSystem { fstype, found }
        }
        _ if around.fstype == "xfs" => Cause::UnacceptableXfs,
        _ => Cause::Unacceptable { fstype },
    }
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
fn busy(log: &[String], read_only: bool) -> Cause {
    let says = |words: &str| log.iter().any(|message| message.contains(words));
    if says("would change RO state") {
        Cause::ReadOnlyMismatch { read_only }
    } else if says("reusing existing filesystem") {
        Cause::AlreadyMounted
    } else {
        Cause::InUse
    }
}

impl Cause {
    /// The next step, as an imperative or a question.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownFileSystem { fstype } => {
                format!("see /proc/filesystems; modprobe {fstype} loads it where it is a module")
            }
            Self::BadOption { option, .. } => {
                format!("take {option} out of the volume's mount options, or correct it")
            }
            Self::NoFileSystem { fstype } => format!(
                "was it formatted? a new volume needs mkfs.{fstype}, which is the CSI driver's job, \
                 never runcrust's"
            ),
            Self::OtherFileSystem { found, .. } => {
                format!(
                    "set the volume's fsType to {}, or check that this is its device",
                    found.fstype()
                )
            }
            Self::Unacceptable { .. } => "the reason may be in the kernel's log (dmesg)".to_owned(),
            Self::UnacceptableXfs => "see the kernel's log (dmesg); a clone or restored snapshot \
                 needs the option nouuid while its original is mounted"
                .to_owned(),
            Self::InUse => {
                "another file system type, device mapper, md, swap or an exclusive open \
                 has it: see lsblk, /proc/swaps, and /proc/*/mountinfo"
                    .to_owned()
            }
            Self::AlreadyMounted => "see who has the device in /proc/*/mountinfo".to_owned(),
            Self::ReadOnlyMismatch { .. } => {
                "use the volume the same way in all pods; a read-only \
                 volumeMount of a read-write volume is possible"
                    .to_owned()
            }
            Self::NoDevice => "is it still attached to this node? see lsblk".to_owned(),
            Self::NotBlockDevice => {
                "an image file needs a loop device (losetup --find --show)".to_owned()
            }
            Self::BadChecksum | Self::Corrupt => {
                "unmount it everywhere and run fsck (xfs_repair, btrfs check); runcrust never does"
                    .to_owned()
            }
            Self::ReadOnlyDevice => "mark the volume read-only, or make the device writable \
                 (blockdev --setrw)"
                .to_owned(),
            Self::JournalOnReadOnlyDevice => "mount it read-write once, or with noload (ext4), \
                 norecovery (xfs)"
                .to_owned(),
            Self::InputOutput => "see the kernel's log (dmesg) for the device's errors".to_owned(),
            Self::NotPermitted => "run as root in the initial user namespace".to_owned(),
            Self::Other => "see the kernel's log (dmesg)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
