//! The description of a type of file system.

use std::fmt;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FsWord, StatFs};
use rustix::io::Errno;

use super::growth::{FileSystemSize, GrowthError};
use crate::DeviceNumber;
use crate::device::{DeviceFacts, read_at};
use crate::kernel;
use crate::signature::Signature;

/// A type of file system: everything in which one differs from another. What a type doesn't say is as
/// `FileSystemType::BASE` has it.
pub struct FileSystemType {
    /// The name, as fsopen(2), mount(8) and blkid(8) have it.
    pub name: &'static str,
    /// Whether the configuration's `fstypes` has it by default.
    pub is_allowed_by_default: bool,
    /// The program that checks and repairs it, as it is written on a command line; `None` for `fsck.TYPE`.
    pub(crate) checker: Option<&'static str>,
    /// The programs that make and check it for the CSI driver; `None` if the driver makes none.
    pub format: Option<Format>,
    /// The types of superblocks that can be mounted as this one, besides its own.
    pub(crate) also_mounts: &'static [&'static str],
    /// The superblock; `None` if that of another type stands for this one too, or if it isn't understood.
    pub(crate) superblock: Option<SuperblockFormat>,
    /// The mount options that concern this type alone.
    pub(crate) options: OptionRules,
    /// Reads the superblock before the kernel is asked for a mount; `None` where nothing has to be known.
    pub(crate) before_mount: Option<BeforeMount>,
    /// Checks the device once more, after the mount was made and before anybody sees it.
    pub(crate) after_mount: Option<AfterMount>,
    /// The bytes that `before_mount` reads, from an offset on.
    pub(crate) read_ahead: Option<(u64, NonZeroU64)>,
    /// The option with which a clone is mounted beside its original, which has the same UUID.
    pub(crate) duplicate_uuid_option: Option<&'static str>,
    /// Growth while it is mounted; `None` if that isn't possible.
    pub(crate) growth: Option<&'static Growth>,
    /// The tables of inodes; `None` if fsGroup has to walk from name to name.
    pub(crate) inode_tables: Option<InodeTables>,
    /// Returns the number of errors that the kernel has recorded of a mounted one.
    pub(crate) recorded_errors: Option<fn(DeviceNumber) -> u64>,
    /// No file system of this type can be written to.
    pub(crate) is_read_only: bool,
    /// It has a device number of its own, with major 0, which is no block device's.
    pub(crate) has_anonymous_device: bool,
    /// The first Linux that maps ids of a user namespace into it; `None` if none does.
    pub(crate) id_mapping_since: Option<kernel::KernelVersion>,
    /// The first Linux that takes an SELinux label for it by way of fsconfig(2).
    pub(crate) selinux_label_since: kernel::KernelVersion,
}

/// Reads the superblock of a device that is about to be mounted with these options, each a name and a value.
pub(crate) type BeforeMount =
    fn(&DeviceFacts, &[(&str, Option<&str>)]) -> Result<RequiredOptions, UnfitDevice>;

/// Checks a device whose file system was just mounted.
pub(crate) type AfterMount = fn(&DeviceFacts) -> Result<(), UnfitDevice>;

/// A superblock's place on the device, and its parser.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuperblockFormat {
    /// Offset on the device in bytes.
    pub(crate) offset: u64,
    /// Number of bytes that the parser needs.
    pub(crate) length: usize,
    /// Parses the bytes; `None` if they are no superblock of this type.
    pub(crate) parse: fn(&[u8]) -> Option<Signature>,
}

/// The mount options of one type that are treated in a way of their own. All others are passed on to the kernel.
#[derive(Debug)]
pub(crate) struct OptionRules {
    /// Options that aren't taken, with the reason, as a clause. They make the kernel open something other than the
    /// volume's device: exclusive use, locks and records cover one device.
    pub(crate) refused: &'static [(&'static str, &'static str)],
    /// Returns the reason why an option isn't taken with a value.
    pub(crate) refused_value: fn(key: &str, value: &str) -> Option<&'static str>,
    /// The option with which a read-only mount leaves the journal alone.
    pub(crate) no_journal_replay: Option<&'static str>,
    /// Options that mean the same, in other or older spellings.
    pub(crate) no_journal_replay_too: &'static [&'static str],
    /// Options that say nothing of the superblock that comes of them.
    pub(crate) not_compared: &'static [&'static str],
    /// Options of which each counts that is given, and not the last alone.
    pub(crate) cumulative: &'static [&'static str],
}

/// The reason to refuse an option that names a second device.
pub(crate) const SECOND_DEVICE: &str = "names a second device, which nothing keeps from being used by another pod: a volume is one device";
/// The reason to refuse an option that names a quota file.
pub(crate) const QUOTA_FILE: &str = "names a quota file; ext4 and f2fs keep quotas in hidden inodes (tune2fs -O quota), which \
     usrquota, grpquota and prjquota switch on";

impl OptionRules {
    /// No option is special.
    pub(crate) const NONE: Self = Self {
        refused: &[],
        refused_value: |_, _| None,
        no_journal_replay: None,
        no_journal_replay_too: &[],
        not_compared: &[],
        cumulative: &[],
    };

    /// Returns the reason why an option isn't taken at all. `key` is in lower case.
    pub(crate) fn refused(&self, key: &str) -> Option<&'static str> {
        let mut refused = self.refused.iter();
        refused.find_map(|(option, why)| (*option == key).then_some(*why))
    }
}

/// Changes that a superblock makes to its mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequiredOptions {
    /// The mount has to be read-only.
    pub(crate) read_only: bool,
    /// An option to be added, with its value.
    pub(crate) option: Option<(&'static str, &'static str)>,
}

/// A device that isn't mounted because of its superblock. The kernel wasn't asked, or the mount was undone.
#[derive(Debug, thiserror::Error)]
#[error("{fstype} on {device:?}: {what}; hint: {hint}")]
pub struct UnfitDevice {
    /// The type of the file system.
    pub fstype: &'static str,
    /// Path of the device.
    pub device: PathBuf,
    /// The reason, as a clause.
    pub what: String,
    /// The next step for an operator.
    pub hint: &'static str,
}

/// How a type of file system grows while it is mounted. `root` is any directory or regular file of it, open for
/// reading on a mount that can be written to.
pub(crate) struct Growth {
    /// The kernel requires `CAP_SYS_RESOURCE`.
    pub(crate) needs_cap_sys_resource: bool,
    /// Returns the size of a mounted one.
    pub(crate) size:
        fn(root: &OwnedFd, &DeviceFacts, &FileSystemType) -> Result<FileSystemSize, GrowthError>,
    /// Returns the size of one that isn't mounted; `None` if its superblock makes no sense.
    pub(crate) size_on_disk: fn(
        &DeviceFacts,
        &FileSystemType,
        &Signature,
    ) -> Result<Option<FileSystemSize>, GrowthError>,
    /// Fails if the kernel would refuse this process to grow one to a size of `blocks`.
    pub(crate) check_allowed: fn(&DeviceFacts, blocks: u64) -> Result<(), GrowthError>,
    /// Grows a mounted one to a size of `bytes`.
    pub(crate) grow:
        fn(root: &OwnedFd, &DeviceFacts, FileSystemSize, bytes: u64) -> Result<(), GrowthError>,
}

/// A way to read all inodes of a file system at once.
pub(crate) struct InodeTables {
    /// `statfs.f_type` (linux/magic.h); ext2, ext3 and ext4 have one.
    pub(crate) magic: FsWord,
    /// Returns the number of inodes if all of them are right; `None` if one isn't, or if that can't be found out.
    pub(crate) count_matching: fn(InodeCheck<'_>) -> Option<u64>,
}

/// A mounted file system whose inodes are all to be checked.
pub(crate) struct InodeCheck<'a> {
    /// Any directory of the file system, open for reading.
    pub(crate) root: BorrowedFd<'a>,
    /// The file system's own numbers, from fstatfs(2).
    pub(crate) statfs: &'a StatFs,
    /// The device that the file system is on.
    pub(crate) device: &'a DeviceFacts,
    /// Whether the inode of a number is as it should be.
    pub(crate) matches: &'a (dyn Fn(u64, InodeAttributes) -> bool + Sync),
    /// Whether to go on; asked now and then.
    pub(crate) may_continue: &'a mut dyn FnMut() -> bool,
}

/// An inode's owner and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeAttributes {
    /// Type and permissions, as in `st_mode`.
    pub(crate) mode: u32,
    /// The group's id, as in `st_gid`.
    pub(crate) group: u32,
}

/// The programs that make a file system and check it: for the CSI driver alone. runcrust never runs them.
#[derive(Debug)]
pub struct Format {
    /// The program that makes one, mkfs(8).
    pub mkfs: &'static str,
    /// The options that it is given.
    pub options: &'static [&'static str],
    /// The fewest bytes of a device that it is made on.
    pub min_device_bytes: u64,
    /// The check of a file system by a backup of its superblock; `None` if the type has no such check.
    pub check_by_backup: Option<BackupSuperblockCheck>,
}

/// Returns a program and its arguments. `block` is the size of a block in bytes.
pub type BackupSuperblockCheck = fn(block: u64) -> (&'static str, Vec<String>);

impl FileSystemType {
    /// A type of which nothing is known. It is mounted, and its fsGroup applied from name to name.
    pub(crate) const BASE: Self = Self {
        name: "",
        is_allowed_by_default: false,
        checker: None,
        format: None,
        also_mounts: &[],
        superblock: None,
        options: OptionRules::NONE,
        before_mount: None,
        after_mount: None,
        read_ahead: None,
        duplicate_uuid_option: None,
        growth: None,
        inode_tables: None,
        recorded_errors: None,
        is_read_only: false,
        has_anonymous_device: false,
        id_mapping_since: None,
        selinux_label_since: (0, 0),
    };

    /// Returns true if a superblock of the type `found` can be mounted as this type.
    #[must_use]
    pub fn can_mount(&self, found: &str) -> bool {
        found == self.name || self.also_mounts.contains(&found)
    }

    /// Returns true if it can grow while it is mounted, by a process that may use reserves
    /// ([`has_cap_sys_resource`](super::has_cap_sys_resource)) or not.
    #[must_use]
    pub fn can_grow(&self, has_cap_sys_resource: bool) -> bool {
        let growth = self.growth;
        growth.is_some_and(|growth| has_cap_sys_resource || !growth.needs_cap_sys_resource)
    }

    /// Returns the number of errors that the kernel has recorded of a mounted one.
    #[must_use]
    pub fn recorded_errors(&self, device: DeviceNumber) -> u64 {
        self.recorded_errors.map_or(0, |count| count(device))
    }
}

impl fmt::Debug for FileSystemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for FileSystemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for FileSystemType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for FileSystemType {}

impl SuperblockFormat {
    /// Reads the superblock of a device; `None` if it has none. Opens the device.
    pub(crate) fn read(&self, device: &DeviceFacts) -> Result<Option<Signature>, Errno> {
        self.read_from(device.opened()?)
    }

    /// Reads the superblock of an open device or image.
    pub(crate) fn read_from(&self, device: impl AsFd) -> Result<Option<Signature>, Errno> {
        let mut bytes = vec![0; self.length];
        let is_whole = read_at(device, &mut bytes, self.offset)?;
        Ok(if is_whole { (self.parse)(&bytes) } else { None })
    }
}

/// Returns the bytes of a superblock's field; zeroes where the superblock ends before it.
pub(crate) fn field<const N: usize>(superblock: &[u8], at: usize) -> [u8; N] {
    let field = superblock.get(at..at + N);
    field
        .and_then(|field| field.try_into().ok())
        .unwrap_or([0; N])
}
