//! The next step for each cause.

use super::MountErrorCause;
use crate::fstypes::checker;
use crate::options::no_journal_replay;

impl MountErrorCause {
    /// The next step, as an imperative or a question. `fstype` is the type that was asked for.
    #[must_use]
    pub fn hint(&self, fstype: &str) -> String {
        match self {
            Self::UnknownFileSystem { fstype } => {
                format!("see /proc/filesystems; modprobe {fstype} loads it where it is a module")
            }
            Self::BadOption { option, .. } => {
                format!("take {option} out of the volume's mount options, or correct it")
            }
            Self::NoFileSystem { fstype } => format!(
                "a new volume is made a file system ({fstype}) by its CSI driver, never by runcrust; if \
                 it has held data, check that this is its device (lsblk), and don't format it"
            ),
            Self::SomethingElse { found, .. } => {
                format!(
                    "don't format it, which destroys what it holds: {}",
                    found.hint
                )
            }
            Self::UnknownData { .. } => {
                "don't format it before you know whose data that is: check \
                 that this is the volume's device (lsblk); `blkid -p` and `wipefs --no-act` list \
                 signatures; does it need to be opened first (encryption, LVM)?"
                    .to_owned()
            }
            Self::OtherFileSystem { found, .. } => {
                format!("set the volume's fsType to {found}, or check that this is its device")
            }
            Self::Unacceptable { .. } => "the kernel's log (dmesg) has the reason: options that \
                 exclude each other, features that it doesn't know, or damage"
                .to_owned(),
            Self::Truncated { .. } => "was it cloned or restored to a smaller volume? give the \
                 device its former size"
                .to_owned(),
            Self::NoSubvolume { .. } => {
                "correct the option; btrfs subvolume list shows those there are".to_owned()
            }
            Self::Remembered => "if that one isn't in use any more, btrfs device scan --forget \
                 makes the kernel forget it; btrfstune -u gives a clone an id of its own"
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
            Self::BadChecksum | Self::Corrupt => format!(
                "unmount it everywhere and run {}; runcrust never does",
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
            Self::NotWritable => "see the kernel's log (dmesg) for what it had to write; a \
                 read-write mount may be able to"
                .to_owned(),
            Self::SmallSectors { sector, .. } => format!(
                "don't format it, for it holds the volume's files: move the file system back to a device \
                 with logical blocks of at most {sector} bytes, and copy the files from there to a new volume"
            ),
            Self::LargeBlocks { .. } => "mount it on a node whose kernel has larger pages or is \
                 newer, or copy its files to a file system with smaller blocks"
                .to_owned(),
            Self::ShutDown => format!(
                "see the kernel's log (dmesg), end all pods and containers that use the volume, and when it is \
                 mounted nowhere any more run {} on its device",
                checker(fstype)
            ),
            Self::InputOutput => "see the kernel's log (dmesg) for the device's errors".to_owned(),
            Self::NotPermitted => "run as root in the initial user namespace".to_owned(),
            Self::Other => "see the kernel's log (dmesg)".to_owned(),
        }
    }
}
