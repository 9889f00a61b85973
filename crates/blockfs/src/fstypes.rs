//! The table of file systems, and what is asked of it by a type's name.
//!
//! Each type is described in one file of this directory: its superblock, the options that concern it, what has to be
//! checked before a mount, how it grows, where its inodes are, what checks and makes it. Everywhere else the table is
//! asked, so that a type is added by its file and a line in [`FILE_SYSTEM_TYPES`].
//!
//! A type that isn't here can be mounted all the same, if the configuration allows it. Then nothing is known of it
//! but its name.

mod btrfs;
mod descriptor;
mod ext;
mod growth;
mod xfs;

use rustix::fs::FsWord;
use rustix::io::Errno;

use crate::kernel;

pub use descriptor::{BackupSuperblockCheck, FileSystemType, Format, UnfitDevice};
pub(crate) use descriptor::{
    Growth, InodeAttributes, InodeCheck, InodeTables, OptionRules, QUOTA_FILE, SECOND_DEVICE,
};
pub(crate) use growth::FileSystemSize;
pub use growth::{GrowthError, has_cap_sys_resource};

/// All types that something is known of, in the order in which a device is searched for them and in which they are
/// listed for people.
pub static FILE_SYSTEM_TYPES: &[&FileSystemType] = &[
    &ext::EXT4,
    &ext::EXT3,
    &ext::EXT2,
    &xfs::XFS,
    &btrfs::BTRFS,
    &SQUASHFS,
    &EROFS,
    &ISO9660,
    &CRAMFS,
    &ROMFS,
];

/// Returns the description of a type.
#[must_use]
pub fn find(fstype: &str) -> Option<&'static FileSystemType> {
    FILE_SYSTEM_TYPES
        .iter()
        .copied()
        .find(|it| it.name == fstype)
}

/// Returns true if a file system whose superblock is of the type `found` can be mounted as `fstype`.
#[must_use]
pub fn is_mountable_as(found: &str, fstype: &str) -> bool {
    find(fstype).is_some_and(|it| it.can_mount(found))
}

/// Returns the types that the configuration's `fstypes` has by default.
pub fn allowed_by_default() -> impl Iterator<Item = &'static str> {
    let allowed = FILE_SYSTEM_TYPES
        .iter()
        .filter(|it| it.is_allowed_by_default);
    allowed.map(|it| it.name)
}

/// Returns true if no file system of this type can be written to.
pub(crate) fn is_read_only_type(fstype: &str) -> bool {
    find(fstype).is_some_and(|it| it.is_read_only)
}

/// Returns true if file systems of this type have a device number of their own, with major 0, which is no block
/// device's. mountinfo then shows the device as the mount's source.
pub(crate) fn has_anonymous_device(fstype: &[u8]) -> bool {
    let mut anonymous = FILE_SYSTEM_TYPES
        .iter()
        .filter(|it| it.has_anonymous_device);
    anonymous.any(|it| it.name.as_bytes() == fstype)
}

/// Whether a file system can be given an SELinux label by way of fsconfig(2), so that nothing on it has to be
/// relabelled (KEP-1710, "mount with -o context"). The security module takes the option for every type, but some types
/// didn't pass it on at first.
#[must_use]
pub fn supports_selinux_label(fstype: &str) -> bool {
    supports_selinux_label_on(fstype, kernel::version())
}

fn supports_selinux_label_on(fstype: &str, kernel: kernel::KernelVersion) -> bool {
    find(fstype).is_none_or(|it| it.selinux_label_since <= kernel)
}

/// Returns the tables of inodes of the file system with this `statfs.f_type`.
pub(crate) fn inode_tables(magic: FsWord) -> Option<&'static InodeTables> {
    let mut tables = FILE_SYSTEM_TYPES
        .iter()
        .filter_map(|it| it.inode_tables.as_ref());
    tables.find(|it| it.magic == magic)
}

/// Returns the program that checks such a file system, as it is written on a command line.
#[must_use]
pub fn checker(fstype: &str) -> String {
    let known = find(fstype).and_then(|it| it.checker);
    known.map_or_else(|| format!("fsck.{fstype}"), str::to_owned)
}

/// Returns the rules for options of all types. Options are read before it counts which type they are for.
pub(crate) fn option_rules() -> impl Iterator<Item = &'static OptionRules> {
    FILE_SYSTEM_TYPES.iter().map(|it| &it.options)
}

/// Returns the hint for a failed call on a mounted volume, to be appended to the error message. Empty
/// if the error says nothing about the volume's health. A file system that was shut down answers EIO to nearly
/// everything until it is unmounted (xfs(5); ext4 and f2fs as well).
#[must_use]
pub fn hint_for_volume_error(errno: Errno) -> String {
    match errno {
        Errno::IO | Errno::NXIO | Errno::NODEV => format!(
            "; hint: the volume's file system was shut down after an error, or its device is gone: see the kernel's \
             log (dmesg), end all pods and containers that use the volume, and when it is mounted nowhere any more \
             run the file system's checker ({}) on its device",
            checkers()
        ),
        Errno::UCLEAN | Errno::BADMSG => format!(
            "; hint: the volume's file system is corrupt: end all pods and containers that use it, and run the file \
             system's checker ({}) on its device",
            checkers()
        ),
        _ => String::new(),
    }
}

/// Returns the checkers of all types that are allowed by default: `e2fsck, xfs_repair or btrfs check`.
pub(crate) fn checkers() -> String {
    let allowed = FILE_SYSTEM_TYPES
        .iter()
        .filter(|it| it.is_allowed_by_default);
    let mut names: Vec<&str> = allowed.filter_map(|it| it.checker).collect();
    // Types of one family stand side by side.
    names.dedup();
    in_words(&names, "or")
}

/// Returns the types that are allowed by default and can't grow without `CAP_SYS_RESOURCE`: `ext4 and ext3`.
#[must_use]
pub fn types_needing_capability_to_grow() -> String {
    let allowed = FILE_SYSTEM_TYPES
        .iter()
        .filter(|it| it.is_allowed_by_default);
    let needing = allowed.filter(|it| {
        it.growth
            .is_some_and(|growth| growth.needs_cap_sys_resource)
    });
    let names: Vec<&str> = needing.map(|it| it.name).collect();
    in_words(&names, "and")
}

/// Returns the types into which this kernel can map the ids of a user namespace, as the subject of a sentence: `ext4,
/// xfs and btrfs`.
pub(crate) fn types_with_id_mapping(kernel: kernel::KernelVersion) -> String {
    let maps = |it: &&&FileSystemType| it.id_mapping_since.is_some_and(|since| since <= kernel);
    let mapped = FILE_SYSTEM_TYPES.iter().filter(maps);
    let names: Vec<&str> = mapped.map(|it| it.name).collect();
    if names.is_empty() {
        return "no file system of this kernel".to_owned();
    }
    in_words(&names, "and")
}

fn in_words(names: &[&str], last: &str) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., name] => format!("{} {last} {name}", names.join(", ")),
    }
}

const fn read_only(name: &'static str) -> FileSystemType {
    FileSystemType {
        name,
        is_read_only: true,
        ..FileSystemType::BASE
    }
}

static SQUASHFS: FileSystemType = read_only("squashfs");
static EROFS: FileSystemType = read_only("erofs");
static ISO9660: FileSystemType = read_only("iso9660");
static CRAMFS: FileSystemType = read_only("cramfs");
static ROMFS: FileSystemType = read_only("romfs");

#[cfg(test)]
mod tests;
