//! The layout of an ext4's groups and inodes on the device (`Documentation/filesystems/ext4`). All functions are pure.
//! The owner of the volume can write these fields, so each number may have any value.

use std::ops::Range;

use crate::fstypes::descriptor::InodeAttributes;

pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
pub(super) const SUPERBLOCK_SIZE: usize = 1024;

const MAGIC: u16 = 0xef53;
const LINUX: u32 = 0;
const ROOT: u64 = 2;
/// The first inode that isn't reserved. The root is among the reserved inodes.
const FIRST_UNRESERVED: u64 = 11;

/// The feature `extents`. Only ext4's driver mounts a file system with it; ext2's driver keeps changed inodes in memory
/// of its own.
const EXTENTS: u32 = 0x40;
/// The feature `64bit`.
const IS_64BIT: u32 = 0x80;
/// Supported incompatible features: those that don't change where inodes are. They are file types, a journal to be
/// replayed (which has been done, since the file system is mounted), extents, 64 bits, multiple mount protection,
/// `flex_bg`, attributes in inodes, checksum seeds, large directories, inline data, encryption, and casefold.
const SUPPORTED_INCOMPATIBLE: u32 =
    0x2 | 0x4 | EXTENTS | IS_64BIT | 0x100 | 0x200 | 0x400 | 0x3e000;
/// The features project quotas and orphan file. Each has a file that no directory has a name for.
const PROJECTS: u32 = 0x2000;
const ORPHAN_FILE: u32 = 0x1000;
/// The features `uninit_bg` and `metadata_csum`. With them the descriptor of a group has a flag for unused inodes.
const GROUP_FLAGS: u32 = 0x10 | 0x400;
/// Supported read-only compatible features: those that don't change where inodes are. They are backups of the
/// superblock, large files, many links, times, quotas, `bigalloc`, checksums, verity, and an orphan file in use.
const SUPPORTED_READ_ONLY: u32 =
    GROUP_FLAGS | 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x100 | 0x200 | PROJECTS | 0x1_8000;
/// State in the superblock: the file system was unmounted or has a journal, and no error was found.
const SOUND: u16 = 0x1;
const STATES: u16 = 0x1 | 0x2;
/// Flag in a group descriptor: no inode of the group is in use.
const INODES_UNUSED: u16 = 1;

/// The layout of a file system's groups and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InodeLayout {
    pub(super) block_size: usize,
    pub(super) inode_size: usize,
    pub(super) groups: u32,
    inodes_in_group: u32,
    descriptors_at: u64,
    pub(super) descriptor_size: usize,
    has_group_flags: bool,
    /// Numbers of unreserved inodes whose files have no name in any directory. 0 stands for none.
    hidden: [u32; 2],
}

/// The locations of a block group's inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockGroup {
    /// Offset in bytes of the bitmap of inodes in use; `None` if the group has none.
    pub(super) bitmap: Option<u64>,
    /// Offset in bytes of the inode table.
    table: u64,
}

impl InodeLayout {
    /// Parses a superblock; returns `None` if the layout isn't supported.
    pub(super) fn parse(superblock: &[u8; SUPERBLOCK_SIZE]) -> Option<Self> {
        let word = |at| u32_at(superblock, at);
        let (incompatible, read_only) = (word(0x60), word(0x64));
        let is_supported = u16_at(superblock, 0x38) == MAGIC
            && word(0x48) == LINUX
            && word(0x4c) == 1
            && u64::from(word(0x54)) == FIRST_UNRESERVED
            && incompatible & EXTENTS != 0
            && incompatible & !SUPPORTED_INCOMPATIBLE == 0
            && read_only & !SUPPORTED_READ_ONLY == 0
            && u16_at(superblock, 0x3a) & STATES == SOUND;
        let block_size = 1024_usize
            .checked_shl(word(0x18))
            .filter(|_| is_supported)?;
        let inode_size = usize::from(u16_at(superblock, 0x58));
        let descriptor_size = match incompatible & IS_64BIT {
            0 => 32,
            _ => usize::from(u16_at(superblock, 0xfe)),
        };
        let (inodes, inodes_in_group) = (word(0x0), word(0x28));
        let sound = block_size <= 0x1_0000
            && inode_size.is_power_of_two()
            && (128..=block_size).contains(&inode_size)
            && descriptor_size.is_power_of_two()
            && (32..=block_size).contains(&descriptor_size)
            && inodes_in_group > 0
            && inodes_in_group as usize <= 8 * block_size
            && inodes.is_multiple_of(inodes_in_group);
        sound.then(|| Self {
            block_size,
            inode_size,
            groups: inodes / inodes_in_group,
            inodes_in_group,
            // The descriptors are in the block after the superblock's.
            descriptors_at: (SUPERBLOCK_OFFSET / block_size as u64 + 1) * block_size as u64,
            descriptor_size,
            has_group_flags: read_only & GROUP_FLAGS != 0,
            hidden: [
                if read_only & PROJECTS == 0 {
                    0
                } else {
                    word(0x26c)
                },
                if word(0x5c) & ORPHAN_FILE == 0 {
                    0
                } else {
                    word(0x280)
                },
            ],
        })
    }

    /// Returns the offset on the device of the block with a group's descriptor, and the offset of the descriptor in
    /// that block, both in bytes.
    pub(super) fn descriptor(&self, group: u32) -> (u64, usize) {
        let in_block = self.block_size / self.descriptor_size;
        let (block, within) = (group as usize / in_block, group as usize % in_block);
        let block = block as u64 * self.block_size as u64;
        (self.descriptors_at + block, within * self.descriptor_size)
    }

    /// Parses a group descriptor; returns `None` if an offset doesn't fit into 64 bits.
    pub(super) fn group(&self, descriptor: &[u8]) -> Option<BlockGroup> {
        let offset = |low, high| {
            let high = match self.descriptor_size {
                32 => 0,
                _ => u32_at(descriptor, high),
            };
            let block = u64::from(high) << 32 | u64::from(u32_at(descriptor, low));
            block.checked_mul(self.block_size as u64)
        };
        let unused = self.has_group_flags && u16_at(descriptor, 0x12) & INODES_UNUSED != 0;
        let (bitmap, table) = (offset(0x4, 0x24)?, offset(0x8, 0x28)?);
        Some(BlockGroup {
            bitmap: (!unused).then_some(bitmap),
            table,
        })
    }

    /// Returns the offset on the device of the inode at an index in a group's table, in bytes.
    pub(super) fn inode_at(&self, group: &BlockGroup, index: usize) -> Option<u64> {
        group.table.checked_add((index * self.inode_size) as u64)
    }

    /// Returns the inode number of the inode at an index in a group's table.
    pub(super) fn number(&self, group: u32, index: usize) -> u64 {
        u64::from(group) * u64::from(self.inodes_in_group) + index as u64 + 1
    }

    /// Returns true if the inode can have a name in a directory.
    pub(super) fn is_reachable(&self, number: u64) -> bool {
        let is_hidden = || self.hidden.map(u64::from).contains(&number);
        number == ROOT || number >= FIRST_UNRESERVED && !is_hidden()
    }

    /// Returns the number of inodes, in use or not.
    pub(super) fn inodes(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.inodes_in_group)
    }

    /// Returns the total size of the inode tables of all groups in bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        self.inodes() * self.inode_size as u64
    }
}

/// The bitmap of a group's inodes in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bitmap {
    bits: Vec<u8>,
    inodes: usize,
    /// Number of inodes in a block of the table.
    inodes_in_block: usize,
}

impl Bitmap {
    pub(super) fn new(layout: &InodeLayout) -> Self {
        let inodes = layout.inodes_in_group as usize;
        Self {
            bits: vec![0; inodes.div_ceil(8)],
            inodes,
            inodes_in_block: layout.block_size / layout.inode_size,
        }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bits
    }

    /// Returns the number of inodes in use.
    pub(super) fn used(&self) -> u64 {
        let ones = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| u64::from(byte.count_ones()))
                .sum::<u64>()
        };
        let (whole, rest) = self.bits.split_at(self.inodes / 8);
        let rest = rest
            .first()
            .map(|byte| byte & !(u8::MAX << (self.inodes % 8)));
        ones(whole) + ones(rest.as_slice())
    }

    pub(super) fn is_used(&self, index: usize) -> bool {
        self.bits[index / 8] & 1 << (index % 8) != 0
    }

    /// Returns the next range of the table that consists of blocks with inodes in use, as indexes of inodes. The range
    /// has at most `max_len` inodes, which must be a whole number of blocks.
    pub(super) fn next_range(&self, from: usize, max_len: usize) -> Option<Range<usize>> {
        let first = (from..self.inodes).find(|&index| self.is_used(index))?;
        let start = first - first % self.inodes_in_block;
        let block_end = |start: usize| (start + self.inodes_in_block).min(self.inodes);
        let mut end = block_end(start);
        while end < self.inodes && end - start < max_len {
            let next = end..block_end(end);
            if !next.clone().any(|index| self.is_used(index)) {
                break;
            }
            end = next.end;
        }
        Some(start..end)
    }
}

/// Parses an inode of a table.
pub(super) fn parse_inode(bytes: &[u8]) -> InodeAttributes {
    InodeAttributes {
        mode: u32::from(u16_at(bytes, 0)),
        group: u32::from(u16_at(bytes, 0x7a)) << 16 | u32::from(u16_at(bytes, 0x18)),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A superblock as mke2fs(8) makes it: 4 KiB blocks, 16 groups of 8192 inodes of 256 bytes.
    fn superblock() -> [u8; SUPERBLOCK_SIZE] {
        let mut superblock = [0; SUPERBLOCK_SIZE];
        for (at, word) in [
            (0x0, 16 * 8192),
            (0x18, 2),
            (0x28, 8192),
            // The state, and the magic number.
            (0x38, 1 << 16 | u32::from(MAGIC)),
            (0x4c, 1),
            (0x54, 11),
            (0x58, 256),
            (0x60, 0x2c2),
            (0x64, GROUP_FLAGS),
            (0xfc, 64 << 16),
        ] {
            put(&mut superblock, at, word);
        }
        superblock
    }

    fn put(superblock: &mut [u8], at: usize, word: u32) {
        superblock[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn with(changes: &[(usize, u32)]) -> Option<InodeLayout> {
        let mut superblock = superblock();
        for &(at, word) in changes {
            put(&mut superblock, at, word);
        }
        InodeLayout::parse(&superblock)
    }

    fn layout(changes: &[(usize, u32)]) -> InodeLayout {
        with(changes).expect("the layout is supported")
    }

    #[test]
    fn descriptors_are_in_the_block_after_the_superblocks() {
        for (log, first) in [(0, 2048), (1, 2048), (2, 4096), (6, 65536)] {
            let layout = layout(&[(0x18, log), (0x28, 1024), (0x0, 1024)]);
            assert_eq!(layout.descriptor(0), (first, 0), "1024 << {log}");
        }
        let layout = layout(&[]);
        assert_eq!((layout.groups, layout.block_size), (16, 4096));
        assert_eq!(layout.inodes(), 16 * 8192);
        assert_eq!(layout.table_bytes(), 16 * 8192 * 256);
        assert_eq!(layout.descriptor(63), (4096, 63 * 64));
        assert_eq!(layout.descriptor(64), (8192, 0));
    }

    #[test]
    fn other_layouts_are_not_supported() {
        for (what, at, word) in [
            ("no ext4", 0x38, 1 << 16 | 0xef52),
            ("neither unmounted nor with a journal", 0x38, 0xef53),
            ("an error was found", 0x38, 3 << 16 | 0xef53),
            ("made by the Hurd", 0x48, 1),
            ("the revision of 1993", 0x4c, 0),
            ("other first inodes", 0x54, 12),
            ("no extents", 0x60, 0x282),
            ("meta_bg", 0x60, 0x2d2),
            ("an external journal", 0x60, 0x2ca),
            ("an unknown incompatible feature", 0x60, 0x8000_02c2),
            ("an unknown read-only feature", 0x64, 0x8000_0410),
            ("blocks shared by files", 0x64, 0x4410),
            ("blocks too large", 0x18, 7),
            ("blocks of an impossible size", 0x18, u32::MAX),
            ("no inodes in a group", 0x28, 0),
            ("more inodes in a group than a bitmap has", 0x28, 32769),
            ("groups that don't add up", 0x0, 8193),
            ("inodes of size 0", 0x58, 0),
            ("inodes of an odd size", 0x58, 192),
            ("inodes larger than a block", 0x58, 8192),
            ("descriptors of size 0", 0xfc, 0),
            ("short descriptors", 0xfc, 16 << 16),
        ] {
            assert_eq!(with(&[(at, word)]), None, "{what}");
        }
    }

    #[test]
    fn files_of_the_file_system_itself_do_not_count() {
        let mut changes = vec![(0x26c, 12), (0x280, 8192 + 1)];
        let without = layout(&changes);
        changes.extend([(0x5c, ORPHAN_FILE), (0x64, PROJECTS)]);
        let with = layout(&changes);
        for (group, index, number, is_own) in [
            (0, 0, 1, true),
            (0, 1, ROOT, false),
            (0, 2, 3, true),
            (0, 9, 10, true),
            (0, 10, FIRST_UNRESERVED, false),
            (0, 11, 12, false),
            (1, 0, 8193, false),
        ] {
            assert_eq!(without.number(group, index), number);
            assert_eq!(without.is_reachable(number), !is_own, "{number}");
            let is_own = is_own || number == 12 || number == 8193;
            assert_eq!(with.is_reachable(number), !is_own, "{number}");
        }
    }

    #[test]
    fn a_group_has_the_offsets_of_its_bitmap_and_table() {
        let mut descriptor = [0; 64];
        for (at, word) in [(0x4, 7), (0x8, 9), (0x24, 1), (0x28, 2)] {
            put(&mut descriptor, at, word);
        }
        let (narrow, wide) = (layout(&[(0x60, 0x242)]), layout(&[]));
        let group = narrow.group(&descriptor).expect("a group");
        assert_eq!((group.bitmap, group.table), (Some(7 << 12), 9 << 12));
        let group = wide.group(&descriptor).expect("a group");
        let at = |high: u64, low: u64| (high << 32 | low) << 12;
        assert_eq!((group.bitmap, group.table), (Some(at(1, 7)), at(2, 9)));
        assert_eq!(wide.inode_at(&group, 3), Some(at(2, 9) + 3 * 256));

        descriptor[0x12] = 1;
        assert_eq!(wide.group(&descriptor).expect("a group").bitmap, None);
        // Without checksums the flag has no meaning.
        let group = layout(&[(0x64, 0)]).group(&descriptor);
        assert!(group.expect("a group").bitmap.is_some());
        put(&mut descriptor, 0x28, u32::MAX);
        assert_eq!(wide.group(&descriptor), None, "the offset overflows");
    }

    #[test]
    fn only_blocks_with_used_inodes_are_read() {
        let layout = layout(&[(0x28, 100), (0x0, 100)]);
        let mut bitmap = Bitmap::new(&layout);
        let ranges = |bitmap: &Bitmap, max_len| {
            let (mut ranges, mut from) = (vec![], 0);
            while let Some(range) = bitmap.next_range(from, max_len) {
                from = range.end;
                ranges.push(range);
            }
            ranges
        };
        assert_eq!(bitmap.bytes().len(), 13);
        assert!(ranges(&bitmap, 64).is_empty());
        // The bits after those of the group's inodes are always set.
        bitmap.bytes()[12] = 0xf0;
        assert!(ranges(&bitmap, 64).is_empty());
        assert_eq!(bitmap.used(), 0);
        for index in [17, 32, 48, 99] {
            bitmap.bytes()[index / 8] |= 1 << (index % 8);
        }
        assert_eq!(ranges(&bitmap, 64), [16..64, 96..100]);
        assert_eq!(ranges(&bitmap, 32), [16..48, 48..64, 96..100]);
        assert!(bitmap.is_used(17) && !bitmap.is_used(18));
        assert_eq!(bitmap.used(), 4);
    }

    #[test]
    fn an_inode_has_a_mode_and_a_group_in_two_halves() {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&0o100_664_u16.to_le_bytes());
        (bytes[0x18], bytes[0x7a]) = (7, 1);
        let (mode, group) = (0o100_664, 65536 + 7);
        assert_eq!(parse_inode(&bytes), InodeAttributes { mode, group });
    }
}
