//! The superblock of an ext2, ext3 or ext4.

use rustix::io::Errno;

use crate::fstypes::descriptor::{Superblock, field};
use crate::signature::{Restriction, Signature, Uuid};

pub(super) const SUPERBLOCK: Superblock = Superblock {
    offset: 0x400,
    length: 0x154,
    parse,
};

/// ext4 replays fast commits only while it is mounted read-write (Linux 5.10 and newer; seen up to 6.18).
static FAST_COMMITS: Restriction = Restriction {
    errno: Errno::ROFS,
    reason: "the journal has fast commits to replay, which ext4 can't do in a read-only mount",
    hint: "mount it read-write once, which replays them, or with noload, which leaves out what the journal has",
};

/// Which of the three types it is, is decided as blkid(8) does, by the features that ext2 and ext3 don't have.
fn parse(superblock: &[u8]) -> Option<Signature> {
    const HAS_JOURNAL: u32 = 0x4;
    const FAST_COMMIT: u32 = 0x400;
    const NEEDS_RECOVERY: u32 = 0x4;
    const IS_A_JOURNAL: u32 = 0x8;
    const READ_ONLY: u32 = 0x1000;
    const IS_64BIT: u32 = 0x80;
    /// filetype, recover, `meta_bg`
    const INCOMPATIBLE_OF_EXT3: u32 = 0x2 | 0x4 | 0x10;
    /// `sparse_super`, `large_file`, `btree_dir`
    const READ_ONLY_OF_EXT3: u32 = 0x1 | 0x2 | 0x4;
    if superblock[0x38..0x3a] != [0x53, 0xEF] {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(field(superblock, at));
    let (compatible, incompatible, read_only) = (number(0x5c), number(0x60), number(0x64));
    // Another's external journal is no file system.
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
