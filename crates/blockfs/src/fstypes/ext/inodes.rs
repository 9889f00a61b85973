//! The tables of inodes of an ext4, read from the device while the file system is mounted. Reader and driver share the
//! device's page cache, which the driver changes as soon as an inode is changed. (The drivers of ext2 and xfs don't.)

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::Errno;

use super::layout::{self, Bitmap, Group, InodeLayout, SUPERBLOCK, SUPERBLOCK_AT};
use crate::device::read_at;
use crate::fstypes::descriptor::{InodeAttributes, InodeCheck};

/// Number of bytes of a table that are read at once.
const PIECE: usize = 256 << 10;

/// Number of bitmaps that are read in any case. One more is read for each [`INODES_A_BITMAP`] inodes: a walk is faster
/// in a large volume with few inodes whose group descriptors don't tell which groups have none.
const BITMAPS: u64 = 256;
const INODES_A_BITMAP: u64 = 16;

/// Returns how many inodes there are, if all of them are right.
pub(super) fn count_matching(survey: InodeCheck<'_>) -> Option<u64> {
    let InodeCheck {
        root,
        statfs,
        device,
        matches,
        may_continue,
    } = survey;
    let tables = Tables::new(device.opened().ok()?);
    let mut tables = tables.filter(|tables| is_of(root, tables.device))?;
    let layout = &tables.layout;
    // Tables that lie on each other, or on a device's holes, would be long to read.
    let has_room = layout.table_bytes() <= device.size().ok()?;
    if !has_room || layout.inodes() != statfs.f_files {
        return None;
    }
    let used = statfs.f_files.checked_sub(statfs.f_ffree)?;
    let mut inodes = 0;
    let mut visit = |number, inode| {
        inodes += 1;
        matches(number, inode)
    };
    tables.all(
        used,
        &mut Reader {
            visit: &mut visit,
            may_continue,
        },
    )?;
    Some(inodes)
}

/// Returns true if the file system is the one on the device.
fn is_of(root: BorrowedFd<'_>, device: &OwnedFd) -> bool {
    let on = fstat(root).map(|stat| stat.st_dev);
    let device = fstat(device).map(|stat| stat.st_rdev);
    on.is_ok() && on == device
}

/// The functions that are called while tables are read.
struct Reader<'a> {
    /// Called with each inode and its number, until it returns false.
    visit: &'a mut dyn FnMut(u64, InodeAttributes) -> bool,
    /// Called before each read; the reading ends when it returns false.
    may_continue: &'a mut dyn FnMut() -> bool,
}

struct Tables<'d> {
    device: &'d OwnedFd,
    layout: InodeLayout,
    piece: Vec<u8>,
}

impl<'d> Tables<'d> {
    fn new(device: &'d OwnedFd) -> Option<Self> {
        let mut superblock = [0; SUPERBLOCK];
        read(device, &mut superblock, SUPERBLOCK_AT)?;
        Some(Self {
            layout: InodeLayout::parse(&superblock)?,
            piece: vec![0; PIECE],
            device,
        })
    }

    /// Visits all inodes. Returns `None` if one can't be read or the reader ends it, and if the bitmaps have
    /// more or fewer than `used`, including the file system's own: then these bitmaps or descriptors aren't those that
    /// the driver uses.
    fn all(&mut self, used: u64, reader: &mut Reader<'_>) -> Option<()> {
        let mut descriptors = vec![0; self.layout.block_size];
        let mut bitmap = Bitmap::new(&self.layout);
        let (mut left, mut bitmaps) = (used, BITMAPS + used / INODES_A_BITMAP);
        for index in 0..self.layout.groups {
            (reader.may_continue)().then_some(())?;
            let (block, at) = self.layout.descriptor(index);
            if at == 0 {
                read(self.device, &mut descriptors, block)?;
            }
            let group = self.layout.group(&descriptors[at..])?;
            let Some(place) = group.bitmap else { continue };
            bitmaps = bitmaps.checked_sub(1)?;
            read(self.device, bitmap.bytes(), place)?;
            left = left.checked_sub(bitmap.used())?;
            self.group(index, &group, &bitmap, reader)?;
        }
        (left == 0).then_some(())
    }

    fn group(
        &mut self,
        index: u32,
        group: &Group,
        bitmap: &Bitmap,
        reader: &mut Reader<'_>,
    ) -> Option<()> {
        let size = self.layout.inode_size;
        let mut from = 0;
        while let Some(run) = bitmap.run(from, PIECE / size) {
            (reader.may_continue)().then_some(())?;
            let piece = &mut self.piece[..run.len() * size];
            read(self.device, piece, self.layout.inode_at(group, run.start)?)?;
            for (place, inode) in run.clone().zip(piece.chunks_exact(size)) {
                let number = self.layout.number(index, place);
                let counts = bitmap.has(place) && self.layout.counts(number);
                if counts && !(reader.visit)(number, layout::inode(inode)) {
                    return None;
                }
            }
            from = run.end;
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
        file.write_all(image).expect("it is written");
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

    /// Returns the numbers of all inodes, of which `used` are in use.
    fn inodes(image: &[u8], used: u64) -> Option<Vec<u64>> {
        let mut inodes = vec![];
        let visit = &mut |number, _| {
            inodes.push(number);
            true
        };
        Tables::new(&opened(image))?.all(
            used,
            &mut Reader {
                visit,
                may_continue: &mut || true,
            },
        )?;
        Some(inodes)
    }

    /// The file system's own, up to the first that it hasn't, and lost+found.
    const USED: u64 = 11;
    const BLOCK: usize = 1024;

    /// Returns the offset of the block that a field of the first descriptor names.
    fn named_by(image: &[u8], field: usize) -> usize {
        let at = 2 * BLOCK + field;
        let number = [0, 1, 2, 3].map(|byte| image[at + byte]);
        u32::from_le_bytes(number) as usize * BLOCK
    }

    #[test]
    fn a_new_file_system_has_its_root_and_lost_and_found() {
        assert_eq!(inodes(&image(), USED), Some(vec![2, 11]));
    }

    #[test]
    fn what_the_bitmaps_have_is_what_the_file_system_says_is_used() {
        let mut image = image();
        assert_eq!(inodes(&image, USED - 1), None);
        assert_eq!(inodes(&image, USED + 1), None);
        let bitmap = named_by(&image, 0x4);
        // That of lost+found.
        assert_eq!(image[bitmap + 1], 0b0000_0111);
        image[bitmap + 1] = 0b0000_0011;
        assert_eq!(inodes(&image, USED), None);
    }

    #[test]
    fn it_ends_where_it_is_told_to() {
        let image = image();
        for (visits, asks) in [(0, 9), (1, 9), (9, 0), (9, 1)] {
            let (mut visited, mut asked) = (0, 0);
            let opened = opened(&image);
            let mut tables = Tables::new(&opened).expect("they are understood");
            let visit = &mut |_, _| {
                visited += 1;
                visited <= visits
            };
            let may_continue = &mut || {
                asked += 1;
                asked <= asks
            };
            assert_eq!(
                tables.all(
                    USED,
                    &mut Reader {
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
            .expect("it is understood")
            .layout;
        // Each has the one behind all, where nothing is used.
        let bitmap = u32::try_from(image.len() / BLOCK).expect("a block");
        image.resize(image.len() + BLOCK, 0);
        let mut descriptor = vec![0; layout.descriptor_size];
        descriptor[0x4..0x8].copy_from_slice(&bitmap.to_le_bytes());
        for place in image[2 * BLOCK..]
            .chunks_exact_mut(descriptor.len())
            .take(GROUPS as usize)
        {
            place.copy_from_slice(&descriptor);
        }
        for (used, groups) in [(0, 257), (1600, 357), (100_000, 4096)] {
            let mut asked = 0;
            let may_continue = &mut || {
                asked += 1;
                true
            };
            let opened = opened(&image);
            let mut tables = Tables::new(&opened).expect("it is understood");
            let visit = &mut |_, _| true;
            let all = tables.all(
                used,
                &mut Reader {
                    visit,
                    may_continue,
                },
            );
            assert_eq!((all, asked), (None, groups), "{used}");
        }
    }

    #[test]
    fn whatever_the_bytes_are_it_comes_to_an_end() {
        let image = image();
        let bitmap = named_by(&image, 0x4);
        // Of the superblock, but for what says that it is understood; of the descriptors; of the bitmap.
        let superblock = (1024..2048_usize).prop_filter("understood", |at| {
            !matches!(at - 1024, 0x38..0x40 | 0x48..0x50 | 0x54..0x5a | 0x60..0x68 | 0xfe..0x100)
        });
        let place = prop_oneof![superblock, 2048..4096_usize, bitmap..bitmap + 16];
        let bytes = prop::collection::vec((place, any::<u8>()), 1..8);
        let mut runner = proptest::test_runner::TestRunner::default();
        let understood = std::cell::Cell::new(0);
        let run = runner.run(&(bytes, 0..100_u64), |(bytes, used)| {
            let mut image = image.clone();
            for (at, byte) in bytes {
                image[at] = byte;
            }
            understood.update(|before| before + u32::from(Tables::new(&opened(&image)).is_some()));
            if let Some(inodes) = inodes(&image, used) {
                prop_assert!(inodes.len() as u64 <= used);
                prop_assert!(inodes.is_sorted_by(|one, other| one < other));
            }
            Ok(())
        });
        run.expect("no panic");
        assert!(understood.get() > 100, "{understood:?}");
    }
}
