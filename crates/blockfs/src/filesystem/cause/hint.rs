//! The next step for each cause.

use super::MountErrorCause;
use crate::fstypes::checker;
use crate::options::no_journal_replay;

impl MountErrorCause {
    /// Returns the next step for an operator, as an imperative. `fstype` is the type that was asked for.
    #[must_use]
    pub fn hint(&self, fstype: &str) -> String {
        match self {
            Self::UnknownFileSystem { fstype } => {
                format!("load its module (modprobe {fstype}); /proc/filesystems lists the file systems that are loaded")
            }
            Self::BadOption { option, .. } => {
                format!("remove {option} from the volume's mount options, or correct it")
            }
            Self::NoFileSystem { fstype } => format!(
                "if the volume is new, its CSI driver must make the file system ({fstype}), since runcrust never \
                 does; if it has held data, don't format it, and check that this is its device (lsblk)"
            ),
            Self::OtherContents { found, .. } => {
                format!(
                    "don't format it, which destroys what it holds: {}",
                    found.hint
                )
            }
            Self::UnknownData { .. } => {
                "don't format it before you know whose data that is: check that this is the volume's device \
                 (lsblk), list signatures with `blkid -p` and `wipefs --no-act`, and check whether the device must \
                 be opened first (encryption, LVM)"
                    .to_owned()
            }
            Self::OtherFileSystem { found, .. } => {
                format!("set the volume's fsType to {found}, or check that this is its device")
            }
            Self::Rejected { .. } => "see the kernel's log (dmesg) for the reason: options that \
                 exclude each other, features that this kernel doesn't know, or damage"
                .to_owned(),
            Self::Truncated { .. } => "give the device its former size; the volume may have been cloned \
                 or restored to a smaller one"
                .to_owned(),
            Self::NoSubvolume { .. } => {
                "correct the option; `btrfs subvolume list` lists the subvolumes".to_owned()
            }
            Self::StaleBtrfsDevice => "if the other device isn't in use any more, make the kernel forget it \
                 (btrfs device scan --forget); give a clone its own id (btrfstune -u)"
                .to_owned(),
            Self::InUse => {
                "find the holder with lsblk, /proc/swaps and /proc/*/mountinfo: a mount of another file system \
                 type, device mapper, md, swap, or a process"
                    .to_owned()
            }
            Self::AlreadyMounted => "find the mount in /proc/*/mountinfo".to_owned(),
            Self::ReadOnlyMismatch { .. } => {
                "use the volume read-only in all pods, or read-write in all; a read-only \
                 volumeMount of a read-write volume is possible"
                    .to_owned()
            }
            Self::NoDevice => "check that the device is still attached to this node (lsblk)".to_owned(),
            Self::NotBlockDevice => {
                "use a block device; an image file needs a loop device (losetup --find --show)".to_owned()
            }
            Self::BadChecksum | Self::Corrupt => format!(
                "stop the pods and containers that use the volume, unmount it everywhere, and run {} on its device, \
                 which runcrust never does",
                checker(fstype)
            ),
            Self::ReadOnlyDevice => "mark the volume read-only, or make the device writable \
                 (blockdev --setrw)"
                .to_owned(),
            Self::JournalOnReadOnlyDevice => {
                let without = no_journal_replay(fstype).map(|option| format!(", or with {option}"));
                format!("mount it read-write once{}", without.unwrap_or_default())
            }
            Self::Restricted(restriction) => restriction.hint.to_owned(),
            Self::WriteRequired => "see the kernel's log (dmesg) for what it had to write; a \
                 read-write mount may succeed"
                .to_owned(),
            Self::SmallSectors { sector, .. } => format!(
                "don't format it, because it holds the volume's files: move the file system back to a device \
                 with logical blocks of at most {sector} bytes, and copy the files from there to a new volume"
            ),
            Self::LargeBlocks { .. } => "mount it on a node whose kernel is newer or has larger pages, or \
                 copy its files to a file system with smaller blocks"
                .to_owned(),
            Self::ShutDown => format!(
                "see the kernel's log (dmesg), stop the pods and containers that use the volume, and when it \
                 isn't mounted any more run {} on its device",
                checker(fstype)
            ),
            Self::ReadFailed => "see the kernel's log (dmesg) for the device's errors".to_owned(),
            Self::NotPermitted => "run as root in the initial user namespace".to_owned(),
            Self::Other => "see the kernel's log (dmesg)".to_owned(),
        }
    }
}
