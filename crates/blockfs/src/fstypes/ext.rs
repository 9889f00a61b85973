//! ext2, ext3 and ext4, which have one superblock (Documentation/filesystems/ext4/super.rst) and one checker. ext4's
//! driver mounts all three.

mod growth;
mod inodes;
mod layout;
mod precautions;
mod superblock;

use std::path::Path;

use super::descriptor::{
    FileSystem, Format, Growth, InodeTables, OptionRules, QUOTA_FILE, SECOND_DEVICE,
};
use crate::DeviceNumber;
use crate::bounded::{self, KERNELS_WORD};

/// Fields that the three types share.
const EXT: FileSystem = FileSystem {
    checker: Some("e2fsck"),
    before_mount: Some(precautions::of_device),
    read_ahead: Some(precautions::PLACE),
    growth: Some(&GROWTH),
    recorded_errors: Some(recorded_errors),
    ..FileSystem::BASE
};

pub(super) static EXT4: FileSystem = FileSystem {
    name: "ext4",
    is_allowed_by_default: true,
    also_mounts: &["ext2", "ext3"],
    superblock: Some(superblock::SUPERBLOCK),
    options: OptionRules {
        refused: &[
            ("journal_dev", SECOND_DEVICE),
            ("journal_path", SECOND_DEVICE),
            ("usrjquota", QUOTA_FILE),
            ("grpjquota", QUOTA_FILE),
            // It says of what form these files are.
            ("jqfmt", QUOTA_FILE),
        ],
        refused_value,
        ..JOURNAL
    },
    inode_tables: Some(InodeTables {
        magic: 0xef53,
        all_right: inodes::all_right,
    }),
    format: Some(format("mkfs.ext4")),
    maps_ids_since: Some((5, 12)),
    ..EXT
};

pub(super) static EXT3: FileSystem = FileSystem {
    name: "ext3",
    is_allowed_by_default: true,
    options: JOURNAL,
    format: Some(format("mkfs.ext3")),
    maps_ids_since: Some((5, 12)),
    ..EXT
};

pub(super) static EXT2: FileSystem = FileSystem {
    name: "ext2",
    also_mounts: &["ext3"],
    ..EXT
};

const JOURNAL: OptionRules = OptionRules {
    no_journal_replay: Some("noload"),
    no_journal_replay_too: &["norecovery"],
    ..OptionRules::NONE
};

static GROWTH: Growth = Growth {
    needs_reserves: true,
    size: growth::size,
    size_on_disk: growth::size_on_disk,
    check_allowed: growth::check_allowed,
    grow: growth::grow,
};

const fn format(mkfs: &'static str) -> Format {
    Format {
        mkfs,
        // mke2fs(8) has been known to ask whether a file is meant. Blocks that root alone may take are of no use to a
        // pod.
        options: &["-F", "-m0"],
        // What is smaller gets no journal from mke2fs(8): an ext4 that doesn't outlive a crash, and an ext3 that is an
        // ext2.
        least: 2 << 20,
        check_by_backup: Some(check_by_backup),
    }
}

/// The first backup of the superblock is in the first block of the second group, of as many blocks as a block has bits.
fn check_by_backup(block: u64) -> (&'static str, Vec<String>) {
    let at = 8 * block + u64::from(block == 1024);
    let (at, block) = (at.to_string(), block.to_string());
    let arguments = ["-p", "-b", &at, "-B", &block].map(str::to_owned);
    ("e2fsck", arguments.to_vec())
}

/// `sb=` selects a copy of the superblock. The kernel takes any base: 0x1 and 010 would be other superblocks than the
/// one that is checked.
fn refused_value(key: &str, value: &str) -> Option<&'static str> {
    const NUMBER: &str = "its value must be a plain decimal number, without 0x or a leading zero; the kernel reads \
         those as other numbers, and the superblock that it uses is checked before the mount";
    // Digits only, within the 32 bits that ext4 takes.
    let number = value.parse::<u32>();
    let is_plain = number.is_ok_and(|number| number.to_string() == value);
    (key == "sb" && !is_plain).then_some(NUMBER)
}

/// `/sys/fs/ext4/<disk>/errors_count` (Documentation/admin-guide/ext4.rst); 0 where another driver has it mounted.
fn recorded_errors(device: DeviceNumber) -> u64 {
    let device = format!("/sys/dev/block/{device}");
    let Ok(device) = std::fs::canonicalize(device) else {
        return 0;
    };
    let Some(name) = device.file_name() else {
        return 0;
    };
    let file = Path::new("/sys/fs/ext4").join(name).join("errors_count");
    let count = bounded::read_to_string(&file, KERNELS_WORD).unwrap_or_default();
    count.trim_end().parse().unwrap_or(0)
}
