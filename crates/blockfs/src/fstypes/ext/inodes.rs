//! Reads the inode tables of an ext4 from the device while the file system is mounted. ext4's driver changes the
//! device's page cache as soon as an inode is changed, so a reader of the device sees the present state. (The drivers
//! of ext2 and xfs don't work like this.)

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::Errno;

use super::layout::{self, Bitmap, BlockGroup, InodeLayout, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::device::read_at;
use crate::fstypes::descriptor::{InodeAttributes, InodeCheck};

/// Maximum number of bytes of a table that are read at once.
const READ_SIZE: usize = 256 << 10;

/// Maximum number of bitmaps to read, plus one for each [`INODES_PER_BITMAP`] inodes in use. In a large volume with few
/// inodes, whose group descriptors don't show which groups are unused, a walk is faster than reading all bitmaps.
const MAX_BITMAPS: u64 = 256;
const INODES_PER_BITMAP: u64 = 16;

/// Returns the number of inodes in use if all of them match; `None` if one doesn't, or if that is unknown.
pub(super) fn count_matching(check: InodeCheck<'_>) -> Option<u64> {
    let InodeCheck {
        root,
        statfs,
        device,
        matches,
        may_continue,
    } = check;
    let tables = Tables::new(device.opened().ok()?);
    let mut tables = tables.filter(|tables| is_on_device(root, tables.device))?;
    let layout = &tables.layout;
    // Tables that overlap, or that lie in holes of the device, would take long to read.
    let fits = layout.table_bytes() <= device.size().ok()?;
    if !fits || layout.inodes() != statfs.f_files {
        return None;
    }
    let used = statfs.f_files.checked_sub(statfs.f_ffree)?;
    let mut inodes = 0;
    let mut visit = |number, inode| {
        inodes += 1;
        matches(number, inode)
    };
    tables.visit_all(
        used,
        &mut Callbacks {
            visit: &mut visit,
            may_continue,
        },
    )?;
    Some(inodes)
}

/// Returns true if the file system is on the device.
fn is_on_device(root: BorrowedFd<'_>, device: &OwnedFd) -> bool {
    let mounted = fstat(root).map(|stat| stat.st_dev);
    let device = fstat(device).map(|stat| stat.st_rdev);
    mounted.is_ok() && mounted == device
}

/// The callbacks of reading the tables.
struct Callbacks<'a> {
    /// Called with the number and the attributes of each inode. Reading ends when it returns false.
    visit: &'a mut dyn FnMut(u64, InodeAttributes) -> bool,
    /// Called before each read. Reading ends when it returns false.
    may_continue: &'a mut dyn FnMut() -> bool,
}

struct Tables<'d> {
    device: &'d OwnedFd,
    layout: InodeLayout,
    buffer: Vec<u8>,
}

impl<'d> Tables<'d> {
    fn new(device: &'d OwnedFd) -> Option<Self> {
        let mut superblock = [0; SUPERBLOCK_SIZE];
        read(device, &mut superblock, SUPERBLOCK_OFFSET)?;
        Some(Self {
            layout: InodeLayout::parse(&superblock)?,
            buffer: vec![0; READ_SIZE],
            device,
        })
    }

    /// Visits all inodes in use. Returns `None` if one can't be read, or if a callback ends the reading.
    ///
    /// Also returns `None` if the number of inodes in the bitmaps isn't `used`, which includes the file system's own
    /// inodes. Then the driver doesn't use these bitmaps or descriptors.
    fn visit_all(&mut self, used: u64, callbacks: &mut Callbacks<'_>) -> Option<()> {
        let mut descriptors = vec![0; self.layout.block_size];
        let mut bitmap = Bitmap::new(&self.layout);
        let (mut remaining, mut bitmaps) = (used, MAX_BITMAPS + used / INODES_PER_BITMAP);
        for index in 0..self.layout.groups {
            (callbacks.may_continue)().then_some(())?;
            let (block, at) = self.layout.descriptor(index);
            if at == 0 {
                read(self.device, &mut descriptors, block)?;
            }
            let group = self.layout.group(&descriptors[at..])?;
            let Some(offset) = group.bitmap else { continue };
            bitmaps = bitmaps.checked_sub(1)?;
            read(self.device, bitmap.bytes(), offset)?;
            remaining = remaining.checked_sub(bitmap.used())?;
            self.visit_group(index, &group, &bitmap, callbacks)?;
        }
        (remaining == 0).then_some(())
    }

    fn visit_group(
        &mut self,
        index: u32,
        group: &BlockGroup,
        bitmap: &Bitmap,
        callbacks: &mut Callbacks<'_>,
    ) -> Option<()> {
        let size = self.layout.inode_size;
        let mut from = 0;
        while let Some(range) = bitmap.next_range(from, READ_SIZE / size) {
            (callbacks.may_continue)().then_some(())?;
            let buffer = &mut self.buffer[..range.len() * size];
            read(
                self.device,
                buffer,
                self.layout.inode_at(group, range.start)?,
            )?;
            for (position, inode) in range.clone().zip(buffer.chunks_exact(size)) {
                let number = self.layout.number(index, position);
                let counts = bitmap.is_used(position) && self.layout.is_reachable(number);
                if counts && !(callbacks.visit)(number, layout::parse_inode(inode)) {
                    return None;
                }
            }
            from = range.end;
        }
        Some(())
    }
}

fn read(device: &OwnedFd, bytes: &mut [u8], at: u64) -> Option<()> {
    match read_at(device, bytes, at) {
        Ok(true) => Some(()),
        Ok(false) | Err(Errno { .. }) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn opened(image: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(image).expect("the image is written");
        file.into()
    }

    fn image() -> Vec<u8> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("image");
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-b", "1024", "-N", "64"])
            .arg(&path)
            .arg("512K");
        assert!(mkfs.status().expect("mkfs.ext4").success());
        fs::read(path).expect("the image")
    }

    /// Returns the numbers of all inodes that are visited. `used` is the number of inodes in use.
    fn inodes(image: &[u8], used: u64) -> Option<Vec<u64>> {
        let mut inodes = vec![];
        let visit = &mut |number, _| {
            inodes.push(number);
            true
        };
        Tables::new(&opened(image))?.visit_all(
            used,
            &mut Callbacks {
                visit,
                may_continue: &mut || true,
            },
        )?;
        Some(inodes)
    }

    /// Number of inodes in use in a new file system: the ten reserved ones, and lost+found.
    const USED: u64 = 11;
    const BLOCK: usize = 1024;

    /// Returns the offset of the block whose number is in a field of the first descriptor.
    fn block_of_field(image: &[u8], field: usize) -> usize {
        let at = 2 * BLOCK + field;
        let number = [0, 1, 2, 3].map(|byte| image[at + byte]);
        u32::from_le_bytes(number) as usize * BLOCK
    }

    #[test]
    fn a_new_file_system_has_its_root_and_lost_and_found() {
        assert_eq!(inodes(&image(), USED), Some(vec![2, 11]));
    }

    #[test]
    fn bitmaps_must_have_as_many_inodes_as_are_in_use() {
        let mut image = image();
        assert_eq!(inodes(&image, USED - 1), None);
        assert_eq!(inodes(&image, USED + 1), None);
        let bitmap = block_of_field(&image, 0x4);
        // The highest bit is that of lost+found.
        assert_eq!(image[bitmap + 1], 0b0000_0111);
        image[bitmap + 1] = 0b0000_0011;
        assert_eq!(inodes(&image, USED), None);
    }

    #[test]
    fn callbacks_end_the_reading() {
        let image = image();
        for (visits, asks) in [(0, 9), (1, 9), (9, 0), (9, 1)] {
            let (mut visited, mut asked) = (0, 0);
            let opened = opened(&image);
            let mut tables = Tables::new(&opened).expect("the layout is supported");
            let visit = &mut |_, _| {
                visited += 1;
                visited <= visits
            };
            let may_continue = &mut || {
                asked += 1;
                asked <= asks
            };
            assert_eq!(
                tables.visit_all(
                    USED,
                    &mut Callbacks {
                        visit,
                        may_continue
                    }
                ),
                None,
                "{visits}, {asks}"
            );
        }
    }

    #[test]
    fn many_bitmaps_are_read_only_for_many_inodes() {
        const GROUPS: u32 = 0x1000;
        let mut image = image();
        image[BLOCK..][..4].copy_from_slice(&(GROUPS * 64).to_le_bytes());
        let layout = Tables::new(&opened(&image))
            .expect("the layout is supported")
            .layout;
        // All groups have the same bitmap, at the end of the image. It has no inodes in use.
        let bitmap = u32::try_from(image.len() / BLOCK).expect("a block");
        image.resize(image.len() + BLOCK, 0);
        let mut descriptor = vec![0; layout.descriptor_size];
        descriptor[0x4..0x8].copy_from_slice(&bitmap.to_le_bytes());
        for slot in image[2 * BLOCK..]
            .chunks_exact_mut(descriptor.len())
            .take(GROUPS as usize)
        {
            slot.copy_from_slice(&descriptor);
        }
        for (used, groups) in [(0, 257), (1600, 357), (100_000, 4096)] {
            let mut asked = 0;
            let may_continue = &mut || {
                asked += 1;
                true
            };
            let opened = opened(&image);
            let mut tables = Tables::new(&opened).expect("the layout is supported");
            let visit = &mut |_, _| true;
            let all = tables.visit_all(
                used,
                &mut Callbacks {
                    visit,
                    may_continue,
                },
            );
            assert_eq!((all, asked), (None, groups), "{used}");
        }
    }

    #[test]
    fn reading_ends_whatever_the_bytes_are() {
        let image = image();
        let bitmap = block_of_field(&image, 0x4);
        // Bytes of the superblock, except for those that decide whether the layout is supported, of the descriptors,
        // and of the bitmap.
        let superblock = (1024..2048_usize).prop_filter("supported", |at| {
            !matches!(at - 1024, 0x38..0x40 | 0x48..0x50 | 0x54..0x5a | 0x60..0x68 | 0xfe..0x100)
        });
        let offset = prop_oneof![superblock, 2048..4096_usize, bitmap..bitmap + 16];
        let bytes = prop::collection::vec((offset, any::<u8>()), 1..8);
        let mut runner = proptest::test_runner::TestRunner::default();
        let supported = std::cell::Cell::new(0);
        let run = runner.run(&(bytes, 0..100_u64), |(bytes, used)| {
            let mut image = image.clone();
            for (at, byte) in bytes {
                image[at] = byte;
            }
            supported.update(|before| before + u32::from(Tables::new(&opened(&image)).is_some()));
            if let Some(inodes) = inodes(&image, used) {
                prop_assert!(inodes.len() as u64 <= used);
                prop_assert!(inodes.is_sorted_by(|one, other| one < other));
            }
            Ok(())
        });
        run.expect("no panic");
        assert!(supported.get() > 100, "{supported:?}");
    }
}
