//! The table of file system types, and lookups in it by a type's name.
//!
//! Each type is described in one file of this directory: its superblock, its mount options, the checks before a mount,
//! its growth, its inode tables, and the programs that check and make it. All other modules look these up in the table.
//! So a type is added with a file and a row in [`FILE_SYSTEM_TYPES`].
//!
//! A type that isn't in the table can be mounted too, if the configuration allows it. Then only its name is known.

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

/// All known types, in the order in which a device is searched for them and in which messages list them.
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

/// Returns the description of a type; `None` if the type isn't in the table.
#[must_use]
pub fn find(fstype: &str) -> Option<&'static FileSystemType> {
    FILE_SYSTEM_TYPES
        .iter()
        .copied()
        .find(|known| known.name == fstype)
}

/// Returns true if a file system whose superblock is of the type `found` can be mounted as `fstype`.
#[must_use]
pub fn is_mountable_as(found: &str, fstype: &str) -> bool {
    find(fstype).is_some_and(|known| known.can_mount(found))
}

/// Returns the types that the configuration key `fstypes` has by default.
pub fn allowed_by_default() -> impl Iterator<Item = &'static str> {
    let allowed = FILE_SYSTEM_TYPES
        .iter()
        .filter(|known| known.is_allowed_by_default);
    allowed.map(|known| known.name)
}

/// Returns true if all file systems of this type are read-only.
pub(crate) fn is_read_only_type(fstype: &str) -> bool {
    find(fstype).is_some_and(|known| known.is_read_only)
}

/// Returns true if file systems of this type have a device number of their own, with the major number 0, and not their
/// block device's. mountinfo then has the device only as the mount's source.
pub(crate) fn has_anonymous_device(fstype: &[u8]) -> bool {
    let mut anonymous = FILE_SYSTEM_TYPES
        .iter()
        .filter(|known| known.has_anonymous_device);
    anonymous.any(|known| known.name.as_bytes() == fstype)
}

/// Returns true if the running kernel lets fsconfig(2) set an SELinux label for a file system of this type. Then
/// nothing on it has to be relabelled (KEP-1710, "mount with -o context").
///
/// The security module accepts the option for every type, but older kernels don't pass it on for some types.
#[must_use]
pub fn supports_selinux_label(fstype: &str) -> bool {
    supports_selinux_label_on(fstype, kernel::version())
}

fn supports_selinux_label_on(fstype: &str, kernel: kernel::KernelVersion) -> bool {
    find(fstype).is_none_or(|known| known.selinux_label_since <= kernel)
}

/// Returns the inode tables of the file system with this `statfs.f_type`; `None` if the type has none.
pub(crate) fn inode_tables(magic: FsWord) -> Option<&'static InodeTables> {
    let mut tables = FILE_SYSTEM_TYPES
        .iter()
        .filter_map(|known| known.inode_tables.as_ref());
    tables.find(|tables| tables.magic == magic)
}

/// Returns the program that checks such a file system, as on a command line. It is `fsck.TYPE` for an unknown type.
#[must_use]
pub fn checker(fstype: &str) -> String {
    let known = find(fstype).and_then(|known| known.checker);
    known.map_or_else(|| format!("fsck.{fstype}"), str::to_owned)
}

/// Returns the rules for the mount options of all types. Options are parsed before the type is considered.
pub(crate) fn option_rules() -> impl Iterator<Item = &'static OptionRules> {
    FILE_SYSTEM_TYPES.iter().map(|known| &known.options)
}

/// Returns the hint for a failed call on a mounted volume, to be appended to the error message. It is empty if the
/// error doesn't depend on the volume's health.
///
/// A file system that was shut down fails nearly every call with EIO until it is unmounted (xfs(5); ext4 and f2fs do
/// the same).
#[must_use]
pub fn hint_for_volume_error(errno: Errno) -> String {
    match errno {
        Errno::IO | Errno::NXIO | Errno::NODEV => format!(
            "; hint: the volume's file system was shut down after an error, or its device is gone: see the kernel's \
             log (dmesg), stop the pods and containers that use the volume, and when it isn't mounted any more \
             run the file system's checker ({}) on its device; if the volume is a share, see the server's log",
            checkers()
        ),
        Errno::STALE => "; hint: the directory was removed or replaced on the file server: restore it, and recreate the \
                         pods that use the volume"
            .to_owned(),
        Errno::UCLEAN | Errno::BADMSG => format!(
            "; hint: the volume's file system is corrupt: stop the pods and containers that use the volume, and run \
             the file system's checker ({}) on its device",
            checkers()
        ),
        _ => String::new(),
    }
}

/// Returns the checkers of all types that are allowed by default: `e2fsck, xfs_repair or btrfs check`.
pub(crate) fn checkers() -> String {
    let allowed = FILE_SYSTEM_TYPES
        .iter()
        .filter(|known| known.is_allowed_by_default);
    let mut names: Vec<&str> = allowed.filter_map(|known| known.checker).collect();
    // Types with the same checker are next to each other.
    names.dedup();
    enumerate(&names, "or")
}

/// Returns the types that are allowed by default and can't grow without `CAP_SYS_RESOURCE`: `ext4 and ext3`.
#[must_use]
pub fn types_needing_capability_to_grow() -> String {
    let allowed = FILE_SYSTEM_TYPES
        .iter()
        .filter(|known| known.is_allowed_by_default);
    let types = allowed.filter(|known| {
        known
            .growth
            .is_some_and(|growth| growth.needs_cap_sys_resource)
    });
    let names: Vec<&str> = types.map(|known| known.name).collect();
    enumerate(&names, "and")
}

/// Returns the types that support id-mapped mounts on this kernel, as the subject of a sentence: `ext4, xfs and btrfs`.
pub(crate) fn types_with_id_mapping(kernel: kernel::KernelVersion) -> String {
    let maps_ids =
        |known: &&&FileSystemType| known.id_mapping_since.is_some_and(|since| since <= kernel);
    let types = FILE_SYSTEM_TYPES.iter().filter(maps_ids);
    let names: Vec<&str> = types.map(|known| known.name).collect();
    if names.is_empty() {
        return "no file system of this kernel".to_owned();
    }
    enumerate(&names, "and")
}

/// Joins names with commas, and the last one with `conjunction`.
fn enumerate(names: &[&str], conjunction: &str) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., name] => format!("{} {conjunction} {name}", names.join(", ")),
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
