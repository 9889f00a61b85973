//! ext2, ext3 and ext4. They have the same superblock format (Documentation/filesystems/ext4/super.rst) and the same
//! checker, and ext4's driver mounts all three.

mod growth;
mod inodes;
mod layout;
mod superblock_check;

use std::path::Path;

use rustix::io::Errno;

use super::descriptor::{
    FileSystemType, Format, Growth, InodeTables, OptionRules, QUOTA_FILE, SECOND_DEVICE,
};
use crate::DeviceNumber;
use crate::bounded::{self, MAX_KERNEL_VALUE};
use crate::fstypes::descriptor::{SuperblockFormat, field};
use crate::signature::{Restriction, Signature, Uuid};

/// Fields that the three types share.
const EXT: FileSystemType = FileSystemType {
    checker: Some("e2fsck"),
    before_mount: Some(superblock_check::check),
    read_ahead: Some(superblock_check::READ_AHEAD),
    growth: Some(&GROWTH),
    recorded_errors: Some(recorded_errors),
    ..FileSystemType::BASE
};

pub(super) static EXT4: FileSystemType = FileSystemType {
    name: "ext4",
    is_allowed_by_default: true,
    also_mounts: &["ext2", "ext3"],
    superblock: Some(SUPERBLOCK),
    options: OptionRules {
        refused: &[
            ("journal_dev", SECOND_DEVICE),
            ("journal_path", SECOND_DEVICE),
            ("usrjquota", QUOTA_FILE),
            ("grpjquota", QUOTA_FILE),
            // The format of the quota files.
            ("jqfmt", QUOTA_FILE),
        ],
        refused_value,
        ..JOURNAL
    },
    inode_tables: Some(InodeTables {
        magic: 0xef53,
        count_matching: inodes::count_matching,
    }),
    format: Some(format("mkfs.ext4")),
    id_mapping_since: Some((5, 12)),
    ..EXT
};

pub(super) static EXT3: FileSystemType = FileSystemType {
    name: "ext3",
    is_allowed_by_default: true,
    options: JOURNAL,
    format: Some(format("mkfs.ext3")),
    id_mapping_since: Some((5, 12)),
    ..EXT
};

pub(super) static EXT2: FileSystemType = FileSystemType {
    name: "ext2",
    also_mounts: &["ext3"],
    ..EXT
};

const JOURNAL: OptionRules = OptionRules {
    no_journal_replay: Some("noload"),
    no_journal_replay_aliases: &["norecovery"],
    ..OptionRules::NONE
};

static GROWTH: Growth = Growth {
    needs_cap_sys_resource: true,
    size: growth::size,
    size_on_disk: growth::size_on_disk,
    check_allowed: growth::check_allowed,
    grow: growth::grow,
};

const fn format(mkfs: &'static str) -> Format {
    Format {
        mkfs,
        // -F: mke2fs(8) may ask for confirmation otherwise. -m0: a pod can't use blocks that are reserved for root.
        options: &["-F", "-m0"],
        // On a smaller device mke2fs(8) makes no journal: an ext4 wouldn't survive a crash, and an ext3 would be an
        // ext2.
        min_device_bytes: 2 << 20,
        check_by_backup: Some(check_by_backup),
    }
}

/// Returns the check by means of the first backup of the superblock. It is in the first block of the second group; a
/// group has as many blocks as a block has bits.
fn check_by_backup(block: u64) -> (&'static str, Vec<String>) {
    let at = 8 * block + u64::from(block == 1024);
    let (at, block) = (at.to_string(), block.to_string());
    let arguments = ["-p", "-b", &at, "-B", &block].map(str::to_owned);
    ("e2fsck", arguments.to_vec())
}

/// Refuses values of `sb=`, which selects a copy of the superblock, in other bases than 10. The kernel accepts any
/// base, so 0x1 and 010 would select other superblocks than the one that is checked.
fn refused_value(key: &str, value: &str) -> Option<&'static str> {
    const NUMBER: &str = "its value must be a plain decimal number, without 0x or a leading zero; the kernel reads \
         those as other numbers, and the superblock that it uses is checked before the mount";
    // Only digits, and within the 32 bits that ext4 accepts.
    let number = value.parse::<u32>();
    let is_plain = number.is_ok_and(|number| number.to_string() == value);
    (key == "sb" && !is_plain).then_some(NUMBER)
}

/// Reads `/sys/fs/ext4/<disk>/errors_count` (Documentation/admin-guide/ext4.rst). Returns 0 if another driver has
/// mounted the device.
fn recorded_errors(device: DeviceNumber) -> u64 {
    let device = format!("/sys/dev/block/{device}");
    let Ok(device) = std::fs::canonicalize(device) else {
        return 0;
    };
    let Some(name) = device.file_name() else {
        return 0;
    };
    let file = Path::new("/sys/fs/ext4").join(name).join("errors_count");
    let count = bounded::read_to_string(&file, MAX_KERNEL_VALUE).unwrap_or_default();
    count.trim_end().parse().unwrap_or(0)
}

const SUPERBLOCK: SuperblockFormat = SuperblockFormat {
    offset: 0x400,
    length: 0x154,
    parse,
};

/// Fast commits in the journal. ext4 replays them only in a read-write mount (since Linux 5.10; still so in 6.18).
static FAST_COMMITS: Restriction = Restriction {
    errno: Errno::ROFS,
    reason: "the journal has fast commits to replay, which ext4 can't do in a read-only mount",
    hint: "mount it read-write once, which replays them, or with noload, which ignores the journal and its changes",
};

/// Parses a superblock. As in blkid(8), the type depends on the features that ext2 and ext3 don't have.
fn parse(superblock: &[u8]) -> Option<Signature> {
    const HAS_JOURNAL: u32 = 0x4;
    const FAST_COMMIT: u32 = 0x400;
    const NEEDS_RECOVERY: u32 = 0x4;
    const IS_A_JOURNAL: u32 = 0x8;
    const READ_ONLY: u32 = 0x1000;
    const IS_64BIT: u32 = 0x80;
    /// Incompatible features of ext3: `filetype`, `recover` and `meta_bg`.
    const INCOMPATIBLE_OF_EXT3: u32 = 0x2 | 0x4 | 0x10;
    /// Read-only compatible features of ext3: `sparse_super`, `large_file` and `btree_dir`.
    const READ_ONLY_OF_EXT3: u32 = 0x1 | 0x2 | 0x4;
    if superblock[0x38..0x3a] != [0x53, 0xEF] {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(field(superblock, at));
    let (compatible, incompatible, read_only) = (number(0x5c), number(0x60), number(0x64));
    // The device is an external journal of another file system.
    if incompatible & IS_A_JOURNAL != 0 {
        return None;
    }
    let high = if incompatible & IS_64BIT == 0 {
        0
    } else {
        number(0x150)
    };
    let blocks = u64::from(high) << 32 | u64::from(number(0x4));
    let fstype = if incompatible & !INCOMPATIBLE_OF_EXT3 != 0 || read_only & !READ_ONLY_OF_EXT3 != 0
    {
        "ext4"
    } else if compatible & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    let bits = number(0x18).saturating_add(10);
    let block_size = 1_u64.checked_shl(bits).unwrap_or(0);
    let has_fast_commits = compatible & FAST_COMMIT != 0 && incompatible & NEEDS_RECOVERY != 0;
    Some(Signature {
        fstype,
        uuid: Uuid(field(superblock, 0x68)),
        size: blocks.saturating_mul(block_size),
        block: block_size,
        devices: 1,
        sector: block_size,
        is_read_only: read_only & READ_ONLY != 0,
        restriction: has_fast_commits.then_some(&FAST_COMMITS),
    })
}
