//! xfs: its row in the table, its superblock, and its growth.

mod inodes;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use super::descriptor::{
    FileSystemType, Format, Growth, InodeTables, OptionRules, SECOND_DEVICE, SuperblockFormat,
    field,
};
use super::growth::{FileSystemSize, GrowthError, ioctl};
use crate::device::DeviceFacts;
use crate::signature::{Signature, Uuid};
use crate::sys::growth;

pub(super) static XFS: FileSystemType = FileSystemType {
    name: "xfs",
    is_allowed_by_default: true,
    checker: Some("xfs_repair"),
    superblock: Some(SuperblockFormat {
        offset: 0,
        length: 0x68,
        parse,
    }),
    options: OptionRules {
        refused: &[("logdev", SECOND_DEVICE), ("rtdev", SECOND_DEVICE)],
        no_journal_replay: Some("norecovery"),
        // `nouuid` affects only the mount, not the superblock.
        not_compared: &["nouuid"],
        ..OptionRules::NONE
    },
    duplicate_uuid_option: Some("nouuid"),
    growth: Some(&Growth {
        needs_cap_sys_resource: false,
        size,
        size_on_disk: |_, _, found| Ok(FileSystemSize::on_disk(found)),
        check_allowed: |_, _| Ok(()),
        grow,
    }),
    inode_tables: Some(InodeTables {
        magic: 0x5846_5342,
        count_matching: inodes::count_matching,
    }),
    format: Some(Format {
        mkfs: "mkfs.xfs",
        // Without `-f` mkfs.xfs refuses a device that isn't empty.
        options: &[],
        // The minimum of mkfs.xfs(8) since 5.19.
        min_device_bytes: 300 << 20,
        check_by_backup: None,
    }),
    id_mapping_since: Some((5, 12)),
    ..FileSystemType::BASE
};

/// Parses `struct xfs_dsb` (`fs/xfs/libxfs/xfs_format.h`), which is big-endian.
fn parse(superblock: &[u8]) -> Option<Signature> {
    superblock.starts_with(b"XFSB").then(|| {
        let block_size = u32::from_be_bytes(field(superblock, 0x4));
        let blocks = u64::from_be_bytes(field(superblock, 0x8));
        Signature {
            fstype: "xfs",
            uuid: Uuid(field(superblock, 0x20)),
            size: blocks.saturating_mul(u64::from(block_size)),
            block: u64::from(block_size),
            devices: 1,
            sector: u64::from(u16::from_be_bytes(field(superblock, 0x66))),
            is_read_only: false,
            restriction: None,
        }
    })
}

fn size(
    root: &OwnedFd,
    device: &DeviceFacts,
    _: &FileSystemType,
) -> Result<FileSystemSize, GrowthError> {
    let geometry = growth::xfs_geometry(root).map_err(|errno| {
        let call = ioctl(device, "XFS_IOC_FSGEOMETRY");
        GrowthError::Call { call, errno }
    })?;
    let block_size = u64::from(geometry.block_size);
    Ok(FileSystemSize {
        bytes: geometry.data_blocks.saturating_mul(block_size),
        block_size: NonZeroU64::new(block_size).unwrap_or(NonZeroU64::MIN),
        min_bytes: 0,
        max_bytes: u64::MAX,
        max_bytes_hint: "",
    })
}

/// Grows a mounted xfs. The kernel doesn't use the end of the device if it is too small for an allocation group.
fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    size: FileSystemSize,
    bytes: u64,
) -> Result<(), GrowthError> {
    // The ioctl sets the percentage of inodes together with the size. The present percentage is passed, so that it
    // doesn't change.
    let percent = growth::xfs_geometry(root)
        .map_err(|errno| GrowthError::ioctl_failed(ioctl(device, "XFS_IOC_FSGEOMETRY"), errno))?
        .inode_max_percent;
    growth::xfs_grow(root, bytes / size.block_size, percent)
        .map_err(|errno| GrowthError::ioctl_failed(ioctl(device, "XFS_IOC_FSGROWFSDATA"), errno))
}
