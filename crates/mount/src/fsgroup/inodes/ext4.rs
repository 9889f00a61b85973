//! ext4's tables, read from the device while the file system is mounted: they are in one cache, the
//! device's, which the driver changes as soon as an inode is changed. (ext2's driver and xfs don't.)

mod layout;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;

use self::layout::{Bitmap, Group, Layout, SUPERBLOCK, SUPERBLOCK_AT};
use crate::device::Device;
use crate::fsgroup::change::Standing;
use crate::probe;

/// Of a table that is read at once, in bytes.
const PIECE: usize = 256 << 10;

/// So many inodes at a time, before it is asked whether to go on.
const AT_ONCE: u64 = 4096;

/// How many inodes there are, if all of them are right.
pub(super) fn all(
    root: BorrowedFd<'_>,
    device: &Device,
    is_right: impl Fn(Standing) -> bool,
    mut goes_on: impl FnMut() -> bool,
) -> Option<u64> {
    let tables = device.open_for_reading(OFlags::empty()).ok()?;
    let mut tables = Tables::new(tables).filter(|tables| is_of(root, &tables.device))?;
    let mut inodes = 0;
    tables.all(&mut |standing| {
        inodes += 1;
        is_right(standing) && (inodes % AT_ONCE != 0 || goes_on())
    })?;
    Some(inodes)
}

/// Whether the file system is the one on the device.
fn is_of(root: BorrowedFd<'_>, device: &OwnedFd) -> bool {
    let on = fstat(root).map(|stat| stat.st_dev);
    let device = fstat(device).map(|stat| stat.st_rdev);
    on.is_ok() && on == device
}

/// Is told of one inode after the other, until it has heard enough.
type Visit<'a> = &'a mut dyn FnMut(Standing) -> bool;

struct Tables {
    device: OwnedFd,
    layout: Layout,
    piece: Vec<u8>,
}

impl Tables {
    fn new(device: OwnedFd) -> Option<Self> {
        let mut superblock = [0; SUPERBLOCK];
        read(&device, &mut superblock, SUPERBLOCK_AT)?;
        Some(Self {
            layout: Layout::parse(&superblock)?,
            piece: vec![0; PIECE],
            device,
        })
    }

    /// `None` where one couldn't be, or was the last that was wanted.
    fn all(&mut self, visit: Visit<'_>) -> Option<()> {
        let mut descriptors = vec![0; self.layout.block_size];
        let mut bitmap = Bitmap::new(&self.layout);
        for index in 0..self.layout.groups {
            let (block, at) = self.layout.descriptor(index);
            if at == 0 {
                read(&self.device, &mut descriptors, block)?;
            }
            let group = self.layout.group(&descriptors[at..])?;
            let Some(place) = group.bitmap else { continue };
            read(&self.device, bitmap.bytes(), place)?;
            self.group(index, &group, &bitmap, visit)?;
        }
        Some(())
    }

    fn group(
        &mut self,
        index: u32,
        group: &Group,
        bitmap: &Bitmap,
        visit: Visit<'_>,
    ) -> Option<()> {
        let size = self.layout.inode_size;
        let mut from = 0;
        while let Some(run) = bitmap.run(from, PIECE / size) {
            let piece = &mut self.piece[..run.len() * size];
            read(&self.device, piece, self.layout.inode_at(group, run.start)?)?;
            for (place, inode) in run.clone().zip(piece.chunks_exact(size)) {
                let counts = bitmap.has(place) && self.layout.counts(index, place);
                if counts && !visit(layout::standing(inode)) {
                    return None;
                }
            }
            from = run.end;
        }
        Some(())
    }
}

fn read(device: &OwnedFd, bytes: &mut [u8], at: u64) -> Option<()> {
    match probe::read_at(device, bytes, at) {
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

    fn inodes(image: &[u8]) -> Option<usize> {
        let mut inodes = 0;
        let visit = &mut |_| {
            inodes += 1;
            true
        };
        Tables::new(opened(image))?.all(visit)?;
        Some(inodes)
    }

    #[test]
    fn a_new_file_system_has_its_root_and_lost_and_found() {
        assert_eq!(inodes(&image()), Some(2));
    }

    #[test]
    fn whatever_the_bytes_are_it_comes_to_an_end() {
        let image = image();
        // The superblock and the descriptors.
        let bytes = prop::collection::vec((1024..4096_usize, any::<u8>()), 1..8);
        let mut runner = proptest::test_runner::TestRunner::default();
        let run = runner.run(&bytes, |bytes| {
            let mut image = image.clone();
            for (at, byte) in bytes {
                image[at] = byte;
            }
            prop_assert!(inodes(&image).is_none_or(|inodes| inodes <= image.len()));
            Ok(())
        });
        run.expect("no panic");
    }
}
