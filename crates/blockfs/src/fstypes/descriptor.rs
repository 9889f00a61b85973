//! The description of a file system type.

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

/// A file system type: everything in which types differ. `FileSystemType::BASE` has the defaults.
pub struct FileSystemType {
    /// Name of the type, as in fsopen(2), mount(8) and blkid(8).
    pub name: &'static str,
    /// Whether the configuration key `fstypes` has this type by default.
    pub is_allowed_by_default: bool,
    /// The program that checks and repairs a file system, as on a command line; `None` for `fsck.TYPE`.
    pub(crate) checker: Option<&'static str>,
    /// The programs that make and check a file system; `None` if the CSI driver can't make one.
    pub format: Option<Format>,
    /// Other types whose superblocks can be mounted as this type.
    pub(crate) also_mounts: &'static [&'static str],
    /// The superblock; `None` if another type's entry recognizes it, or if it isn't recognized at all.
    pub(crate) superblock: Option<SuperblockFormat>,
    /// Rules for mount options of this type.
    pub(crate) options: OptionRules,
    /// Checks the superblock before the mount; `None` if no check is needed.
    pub(crate) before_mount: Option<BeforeMount>,
    /// Checks the device again after the mount was made, before it is attached anywhere; `None` if no check is needed.
    pub(crate) after_mount: Option<AfterMount>,
    /// Offset and length in bytes of the superblock that `before_mount` reads.
    pub(crate) read_ahead: Option<(u64, NonZeroU64)>,
    /// The option with which a clone can be mounted while its original, which has the same UUID, is mounted.
    pub(crate) duplicate_uuid_option: Option<&'static str>,
    /// Growth of a mounted file system; `None` if that isn't possible.
    pub(crate) growth: Option<&'static Growth>,
    /// The inode tables; `None` if fsGroup has to walk the tree.
    pub(crate) inode_tables: Option<InodeTables>,
    /// Returns the number of errors that the kernel has recorded for a mounted file system.
    pub(crate) recorded_errors: Option<fn(DeviceNumber) -> u64>,
    /// Whether all file systems of this type are read-only.
    pub(crate) is_read_only: bool,
    /// Whether a file system has a device number of its own, with the major number 0, and not its block device's.
    pub(crate) has_anonymous_device: bool,
    /// The first Linux version with id-mapped mounts of this type; `None` if no version has them.
    pub(crate) id_mapping_since: Option<kernel::KernelVersion>,
    /// The first Linux version in which fsconfig(2) can set an SELinux label.
    pub(crate) selinux_label_since: kernel::KernelVersion,
}

/// Checks a device before it is mounted with the given options (name and value), and returns the options that its
/// superblock requires.
pub(crate) type BeforeMount =
    fn(&DeviceFacts, &[(&str, Option<&str>)]) -> Result<RequiredOptions, UnfitDevice>;

/// Checks a device whose file system has just been mounted.
pub(crate) type AfterMount = fn(&DeviceFacts) -> Result<(), UnfitDevice>;

/// The location of a superblock on the device, and its parser.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuperblockFormat {
    /// Offset on the device in bytes.
    pub(crate) offset: u64,
    /// Number of bytes that the parser needs.
    pub(crate) length: usize,
    /// Parses the bytes; returns `None` if they aren't a superblock of this type.
    pub(crate) parse: fn(&[u8]) -> Option<Signature>,
}

/// Rules for the mount options of one type. All other options are passed to the kernel unchanged.
#[derive(Debug)]
pub(crate) struct OptionRules {
    /// Options that are refused, with the reason as a clause. They make the kernel open something other than the
    /// volume's device, but exclusive use, locks and records cover only that device.
    pub(crate) refused: &'static [(&'static str, &'static str)],
    /// Returns the reason as a clause if an option is refused with this value.
    pub(crate) refused_value: fn(key: &str, value: &str) -> Option<&'static str>,
    /// The option with which a read-only mount doesn't replay the journal.
    pub(crate) no_journal_replay: Option<&'static str>,
    /// Other spellings of that option.
    pub(crate) no_journal_replay_aliases: &'static [&'static str],
    /// Options that don't change the superblock, and so aren't compared with those of an existing mount.
    pub(crate) not_compared: &'static [&'static str],
    /// Options that may be given several times and have an effect each time. Of other options only the last one counts.
    pub(crate) cumulative: &'static [&'static str],
}

/// The reason for refusing an option that names a second device.
pub(crate) const SECOND_DEVICE: &str = "names a second device, but a volume is a single device; nothing would keep \
     other pods from using the second one";
/// The reason for refusing an option that names a quota file.
pub(crate) const QUOTA_FILE: &str = "names a quota file; ext4 and f2fs keep quotas in hidden inodes \
     (tune2fs -O quota), which usrquota, grpquota and prjquota enable";

impl OptionRules {
    /// The rules of a type without special options.
    pub(crate) const NONE: Self = Self {
        refused: &[],
        refused_value: |_, _| None,
        no_journal_replay: None,
        no_journal_replay_aliases: &[],
        not_compared: &[],
        cumulative: &[],
    };

    /// Returns the reason if an option is refused whatever its value is. `key` must be in lower case.
    pub(crate) fn refused(&self, key: &str) -> Option<&'static str> {
        let mut refused = self.refused.iter();
        refused.find_map(|(option, reason)| (*option == key).then_some(*reason))
    }
}

/// Options that a superblock requires for its mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequiredOptions {
    /// Whether the mount must be read-only.
    pub(crate) read_only: bool,
    /// An option to add, with its value.
    pub(crate) option: Option<(&'static str, &'static str)>,
}

/// The error for a device that isn't mounted because of its superblock. There was no mount, or the mount was undone.
#[derive(Debug, thiserror::Error)]
#[error("{fstype} on {device:?}: {reason}; hint: {hint}")]
pub struct UnfitDevice {
    /// The type of the file system.
    pub fstype: &'static str,
    /// Path of the device.
    pub device: PathBuf,
    /// The reason as a clause.
    pub reason: String,
    /// The next step for an operator.
    pub hint: &'static str,
}

/// The functions that grow a mounted file system of a type.
///
/// `root` is any directory or regular file of the file system, open for reading on a writable mount.
pub(crate) struct Growth {
    /// Whether the kernel requires `CAP_SYS_RESOURCE`.
    pub(crate) needs_cap_sys_resource: bool,
    /// Returns the size of a mounted file system.
    pub(crate) size:
        fn(root: &OwnedFd, &DeviceFacts, &FileSystemType) -> Result<FileSystemSize, GrowthError>,
    /// Returns the size of a file system that isn't mounted; `None` if its superblock is invalid.
    pub(crate) size_on_disk: fn(
        &DeviceFacts,
        &FileSystemType,
        &Signature,
    ) -> Result<Option<FileSystemSize>, GrowthError>,
    /// Fails if the kernel would refuse to let this process grow a file system to `blocks` blocks.
    pub(crate) check_allowed: fn(&DeviceFacts, blocks: u64) -> Result<(), GrowthError>,
    /// Grows a mounted file system to `bytes` bytes.
    pub(crate) grow:
        fn(root: &OwnedFd, &DeviceFacts, FileSystemSize, bytes: u64) -> Result<(), GrowthError>,
}

/// The inode tables of a file system, which have all inodes.
pub(crate) struct InodeTables {
    /// `statfs.f_type` (linux/magic.h). ext2, ext3 and ext4 have the same value.
    pub(crate) magic: FsWord,
    /// Returns the number of inodes in use if all of them match; `None` if one doesn't, or if that is unknown.
    pub(crate) count_matching: fn(InodeCheck<'_>) -> Option<u64>,
}

/// A check of all inodes of a mounted file system.
pub(crate) struct InodeCheck<'a> {
    /// Any directory of the file system, open for reading.
    pub(crate) root: BorrowedFd<'a>,
    /// The result of fstatfs(2).
    pub(crate) statfs: &'a StatFs,
    /// The device that the file system is on.
    pub(crate) device: &'a DeviceFacts,
    /// Returns true if the inode with this number and these attributes matches. May be called by several threads.
    pub(crate) matches: &'a (dyn Fn(u64, InodeAttributes) -> bool + Sync),
    /// Returns false to end the check. Called at intervals, on the caller's thread.
    pub(crate) may_continue: &'a mut dyn FnMut() -> bool,
}

/// The attributes of an inode that fsGroup depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeAttributes {
    /// Type and permissions, as in `st_mode`.
    pub(crate) mode: u32,
    /// The group's id, as in `st_gid`.
    pub(crate) group: u32,
}

/// The programs that make a file system and check it. Only the CSI driver runs them; runcrust never does.
#[derive(Debug)]
pub struct Format {
    /// The program that makes a file system (mkfs(8)).
    pub mkfs: &'static str,
    /// Options for `mkfs`, which come before the device.
    pub options: &'static [&'static str],
    /// Minimum size of the device in bytes.
    pub min_device_bytes: u64,
    /// The check of a file system by means of a backup of its superblock; `None` if the type has none.
    pub check_by_backup: Option<BackupSuperblockCheck>,
}

/// Returns the program that checks a file system by means of a backup of its superblock, and the program's arguments
/// without the device. `block` is the size of a block in bytes.
pub type BackupSuperblockCheck = fn(block: u64) -> (&'static str, Vec<String>);

impl FileSystemType {
    /// The defaults: a type that is mounted without checks, and whose tree is walked for fsGroup.
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

    /// Returns true if a file system whose superblock is of the type `found` can be mounted as this type.
    #[must_use]
    pub fn can_mount(&self, found: &str) -> bool {
        found == self.name || self.also_mounts.contains(&found)
    }

    /// Returns true if a mounted file system of this type can grow. `has_cap_sys_resource` says whether the process
    /// that grows it has this capability ([`has_cap_sys_resource`](super::has_cap_sys_resource)).
    #[must_use]
    pub fn can_grow(&self, has_cap_sys_resource: bool) -> bool {
        let growth = self.growth;
        growth.is_some_and(|growth| has_cap_sys_resource || !growth.needs_cap_sys_resource)
    }

    /// Returns the number of errors that the kernel has recorded for a mounted file system; 0 for types without such a
    /// record.
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
    /// Reads the superblock of a device; returns `None` if it has none. Opens the device.
    pub(crate) fn read(&self, device: &DeviceFacts) -> Result<Option<Signature>, Errno> {
        self.read_from(device.opened()?)
    }

    /// Reads the superblock of an open device or image; returns `None` if it has none.
    pub(crate) fn read_from(&self, device: impl AsFd) -> Result<Option<Signature>, Errno> {
        let mut bytes = vec![0; self.length];
        let is_whole = read_at(device, &mut bytes, self.offset)?;
        Ok(if is_whole { (self.parse)(&bytes) } else { None })
    }
}

/// Returns the bytes of a superblock's field; zeroes if the superblock ends before it.
pub(crate) fn field<const N: usize>(superblock: &[u8], at: usize) -> [u8; N] {
    let field = superblock.get(at..at + N);
    field
        .and_then(|field| field.try_into().ok())
        .unwrap_or([0; N])
}
