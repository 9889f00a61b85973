//! The places of an ext4's inodes (`Documentation/filesystems/ext4`). Pure. The owner of the volume wrote what is read
//! here: each number may be anything.

use std::ops::Range;

use crate::fstypes::descriptor::InodeAttributes;

pub(super) const SUPERBLOCK_AT: u64 = 1024;
pub(super) const SUPERBLOCK: usize = 1024;

const MAGIC: u16 = 0xef53;
const LINUX: u32 = 0;
const ROOT: u64 = 2;
/// The first inode that isn't the file system's own; the root is before it.
const FIRST: u64 = 11;

/// Features that only ext4's driver mounts. ext2's has changed inodes in memory of its own.
const EXTENTS: u32 = 0x40;
const WIDE: u32 = 0x80;
/// Features with which the inodes are where they are read here: file types, a journal to be replayed (it is
/// mounted, so it has been), extents, 64 bits, multiple mount protection, `flex_bg`, attributes in
/// inodes, checksum seeds, large directories, inline data, encryption, casefold.
const UNDERSTOOD: u32 = 0x2 | 0x4 | EXTENTS | WIDE | 0x100 | 0x200 | 0x400 | 0x3e000;
/// Project quotas, and a file of orphans: files that the file system has for itself.
const PROJECTS: u32 = 0x2000;
const ORPHAN_FILE: u32 = 0x1000;
/// Groups tell of themselves that they have never been written to: `uninit_bg`, `metadata_csum`.
const GROUPS_TELL: u32 = 0x10 | 0x400;
/// Features of the same kind that a driver which doesn't know them may only read: backups of the superblock, large
/// files, many links, times, quotas, `bigalloc`, checksums, verity, and that the file of orphans is in use.
const UNDERSTOOD_BY_WRITERS: u32 =
    GROUPS_TELL | 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x100 | 0x200 | PROJECTS | 0x1_8000;
/// The superblock's state of a file system that was unmounted, or has a journal, and in which no error was found.
const SOUND: u16 = 0x1;
const STATES: u16 = 0x1 | 0x2;
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
    groups_tell: bool,
    /// Inodes of the file system's own files that aren't among the first; 0 if there is none.
    hidden: [u32; 2],
}

/// A block group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// Offset of the bitmap of used inodes in bytes; `None` if no inode is in use.
    pub(super) bitmap: Option<u64>,
    table: u64,
}

impl InodeLayout {
    /// Parses a superblock; `None` if it isn't understood.
    pub(super) fn parse(superblock: &[u8; SUPERBLOCK]) -> Option<Self> {
        let word = |at| u32_at(superblock, at);
        let (incompatible, read_only) = (word(0x60), word(0x64));
        let understood = u16_at(superblock, 0x38) == MAGIC
            && word(0x48) == LINUX
            && word(0x4c) == 1
            && u64::from(word(0x54)) == FIRST
            && incompatible & EXTENTS != 0
            && incompatible & !UNDERSTOOD == 0
            && read_only & !UNDERSTOOD_BY_WRITERS == 0
            && u16_at(superblock, 0x3a) & STATES == SOUND;
        let block_size = 1024_usize.checked_shl(word(0x18)).filter(|_| understood)?;
        let inode_size = usize::from(u16_at(superblock, 0x58));
        let descriptor_size = match incompatible & WIDE {
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
            // In the block after the superblock's.
            descriptors_at: (SUPERBLOCK_AT / block_size as u64 + 1) * block_size as u64,
            descriptor_size,
            groups_tell: read_only & GROUPS_TELL != 0,
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

    /// Returns the offset of the block with a group's descriptor on the device, and of the descriptor in that block, in
    /// bytes.
    pub(super) fn descriptor(&self, group: u32) -> (u64, usize) {
        let in_block = self.block_size / self.descriptor_size;
        let (block, within) = (group as usize / in_block, group as usize % in_block);
        let block = block as u64 * self.block_size as u64;
        (self.descriptors_at + block, within * self.descriptor_size)
    }

    /// Parses a descriptor; `None` if the group lies on no device.
    pub(super) fn group(&self, descriptor: &[u8]) -> Option<Group> {
        let place = |low, high| {
            let high = match self.descriptor_size {
                32 => 0,
                _ => u32_at(descriptor, high),
            };
            let block = u64::from(high) << 32 | u64::from(u32_at(descriptor, low));
            block.checked_mul(self.block_size as u64)
        };
        let unused = self.groups_tell && u16_at(descriptor, 0x12) & INODES_UNUSED != 0;
        let (bitmap, table) = (place(0x4, 0x24)?, place(0x8, 0x28)?);
        Some(Group {
            bitmap: (!unused).then_some(bitmap),
            table,
        })
    }

    /// Returns the offset of one of a group's inodes in bytes.
    pub(super) fn inode_at(&self, group: &Group, place: usize) -> Option<u64> {
        group.table.checked_add((place * self.inode_size) as u64)
    }

    /// The number of one of a group's inodes.
    pub(super) fn number(&self, group: u32, place: usize) -> u64 {
        u64::from(group) * u64::from(self.inodes_in_group) + place as u64 + 1
    }

    /// Whether an inode can be something that a name leads to.
    pub(super) fn counts(&self, number: u64) -> bool {
        let is_hidden = || self.hidden.map(u64::from).contains(&number);
        number == ROOT || number >= FIRST && !is_hidden()
    }

    /// How many there can be.
    pub(super) fn inodes(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.inodes_in_group)
    }

    /// How long the tables of all groups are together.
    pub(super) fn table_bytes(&self) -> u64 {
        self.inodes() * self.inode_size as u64
    }
}

/// The bitmap of a group's used inodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bitmap {
    bits: Vec<u8>,
    inodes: usize,
    /// How many are in a block of the table.
    in_block: usize,
}

impl Bitmap {
    pub(super) fn new(layout: &InodeLayout) -> Self {
        let inodes = layout.inodes_in_group as usize;
        Self {
            bits: vec![0; inodes.div_ceil(8)],
            inodes,
            in_block: layout.block_size / layout.inode_size,
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

    pub(super) fn has(&self, place: usize) -> bool {
        self.bits[place / 8] & 1 << (place % 8) != 0
    }

    /// The next blocks of the table with used inodes, as places in it: no more than `most`, which is
    /// a whole number of blocks.
    pub(super) fn run(&self, from: usize, most: usize) -> Option<Range<usize>> {
        let first = (from..self.inodes).find(|&place| self.has(place))?;
        let start = first - first % self.in_block;
        let block_end = |start: usize| (start + self.in_block).min(self.inodes);
        let mut end = block_end(start);
        while end < self.inodes && end - start < most {
            let next = end..block_end(end);
            if !next.clone().any(|place| self.has(place)) {
                break;
            }
            end = next.end;
        }
        Some(start..end)
    }
}

/// Reads an inode of a table.
pub(super) fn inode(bytes: &[u8]) -> InodeAttributes {
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
    fn superblock() -> [u8; SUPERBLOCK] {
        let mut superblock = [0; SUPERBLOCK];
        for (at, word) in [
            (0x0, 16 * 8192),
            (0x18, 2),
            (0x28, 8192),
            // And that it is sound.
            (0x38, 1 << 16 | u32::from(MAGIC)),
            (0x4c, 1),
            (0x54, 11),
            (0x58, 256),
            (0x60, 0x2c2),
            (0x64, GROUPS_TELL),
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
        with(changes).expect("it is understood")
    }

    #[test]
    fn the_descriptors_are_in_the_block_after_the_superblocks() {
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
    fn what_is_not_understood_is_not_read() {
        for (what, at, word) in [
            ("no ext4", 0x38, 1 << 16 | 0xef52),
            ("neither unmounted nor with a journal", 0x38, 0xef53),
            ("an error was found", 0x38, 3 << 16 | 0xef53),
            ("the Hurd's", 0x48, 1),
            ("of 1993", 0x4c, 0),
            ("other first inodes", 0x54, 12),
            ("no extents", 0x60, 0x282),
            ("meta_bg", 0x60, 0x2d2),
            ("a journal for others", 0x60, 0x2ca),
            ("of the future", 0x60, 0x8000_02c2),
            ("of the future, for writers", 0x64, 0x8000_0410),
            ("blocks shared by files", 0x64, 0x4410),
            ("blocks too large", 0x18, 7),
            ("blocks out of all range", 0x18, u32::MAX),
            ("no inodes in a group", 0x28, 0),
            ("more than a bitmap has", 0x28, 32769),
            ("groups that don't add up", 0x0, 8193),
            ("inodes of no size", 0x58, 0),
            ("of an odd size", 0x58, 192),
            ("larger than a block", 0x58, 8192),
            ("no descriptors", 0xfc, 0),
            ("short ones", 0xfc, 16 << 16),
        ] {
            assert_eq!(with(&[(at, word)]), None, "{what}");
        }
    }

    #[test]
    fn its_own_files_do_not_count() {
        let mut changes = vec![(0x26c, 12), (0x280, 8192 + 1)];
        let without = layout(&changes);
        changes.extend([(0x5c, ORPHAN_FILE), (0x64, PROJECTS)]);
        let with = layout(&changes);
        for (group, place, number, is_own) in [
            (0, 0, 1, true),
            (0, 1, ROOT, false),
            (0, 2, 3, true),
            (0, 9, 10, true),
            (0, 10, FIRST, false),
            (0, 11, 12, false),
            (1, 0, 8193, false),
        ] {
            assert_eq!(without.number(group, place), number);
            assert_eq!(without.counts(number), !is_own, "{number}");
            let is_own = is_own || number == 12 || number == 8193;
            assert_eq!(with.counts(number), !is_own, "{number}");
        }
    }

    #[test]
    fn a_group_says_where_its_inodes_are_and_whether_it_has_any() {
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
        // Nobody else set it, without a checksum.
        let group = layout(&[(0x64, 0)]).group(&descriptor);
        assert!(group.expect("a group").bitmap.is_some());
        put(&mut descriptor, 0x28, u32::MAX);
        assert_eq!(wide.group(&descriptor), None, "beyond all bytes");
    }

    #[test]
    fn only_blocks_with_used_inodes_are_read() {
        let layout = layout(&[(0x28, 100), (0x0, 100)]);
        let mut bitmap = Bitmap::new(&layout);
        let runs = |bitmap: &Bitmap, most| {
            let (mut runs, mut from) = (vec![], 0);
            while let Some(run) = bitmap.run(from, most) {
                from = run.end;
                runs.push(run);
            }
            runs
        };
        assert_eq!(bitmap.bytes().len(), 13);
        assert!(runs(&bitmap, 64).is_empty());
        // What is beyond the group's inodes is always set.
        bitmap.bytes()[12] = 0xf0;
        assert!(runs(&bitmap, 64).is_empty());
        assert_eq!(bitmap.used(), 0);
        for place in [17, 32, 48, 99] {
            bitmap.bytes()[place / 8] |= 1 << (place % 8);
        }
        assert_eq!(runs(&bitmap, 64), [16..64, 96..100]);
        assert_eq!(runs(&bitmap, 32), [16..48, 48..64, 96..100]);
        assert!(bitmap.has(17) && !bitmap.has(18));
        assert_eq!(bitmap.used(), 4);
    }

    #[test]
    fn an_inode_has_a_mode_and_a_group_of_two_halves() {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&0o100_664_u16.to_le_bytes());
        (bytes[0x18], bytes[0x7a]) = (7, 1);
        let (mode, group) = (0o100_664, 65536 + 7);
        assert_eq!(inode(&bytes), InodeAttributes { mode, group });
    }
}
