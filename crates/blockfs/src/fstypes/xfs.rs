//! xfs: its row of the table, its superblock, and its growth.

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
        // It says how the superblock was come by, and not what it is.
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
        // Without `-f` it refuses what isn't empty.
        options: &[],
        // mkfs.xfs(8), since 5.19.
        min_device_bytes: 300 << 20,
        check_by_backup: None,
    }),
    id_mapping_since: Some((5, 12)),
    ..FileSystemType::BASE
};

/// `struct xfs_dsb` (`fs/xfs/libxfs/xfs_format.h`), big-endian.
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
    let block = u64::from(geometry.block_size);
    Ok(FileSystemSize {
        bytes: geometry.data_blocks.saturating_mul(block),
        block: NonZeroU64::new(block).unwrap_or(NonZeroU64::MIN),
        least: 0,
        most: u64::MAX,
        hint_above: "",
    })
}

/// Grows a mounted xfs. The kernel leaves out the end of the device if it is too small for an allocation group.
fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    size: FileSystemSize,
    bytes: u64,
) -> Result<(), GrowthError> {
    // It is set with the size, and meant to stay.
    let percent = growth::xfs_geometry(root)
        .map_err(|errno| GrowthError::refusal(ioctl(device, "XFS_IOC_FSGEOMETRY"), errno))?
        .inode_max_percent;
    growth::xfs_grow(root, bytes / size.block, percent)
        .map_err(|errno| GrowthError::refusal(ioctl(device, "XFS_IOC_FSGROWFSDATA"), errno))
}
