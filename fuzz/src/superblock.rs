//! The target for superblocks. Whoever wrote the volume controls them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crust_blockfs::fstypes::is_mountable_as;
use crust_blockfs::probe::probe;
use rustix::fs::{MemfdFlags, memfd_create};

/// Offsets of the superblocks of ext, xfs and btrfs in bytes.
const OFFSETS: [u64; 3] = [0x400, 0, 0x1_0000];

/// Probes an image with a superblock. The first byte of the input selects the file system, the rest is the start of the
/// superblock.
pub fn superblock(bytes: &[u8]) {
    let Some((selector, content)) = bytes.split_first() else {
        return;
    };
    let offset = OFFSETS[usize::from(*selector) % OFFSETS.len()];
    let image = memfd_create("superblock", MemfdFlags::CLOEXEC).expect("memfd_create");
    let image = File::from(image);
    image.set_len(offset + 0x1000).expect("ftruncate");
    image.write_all_at(content, offset).expect("pwrite");
    let Some(found) = probe(&image).expect("a file can be read") else {
        return;
    };
    assert!(is_mountable_as(found.fstype, found.fstype));
    assert_eq!(found.uuid.to_string().len(), 36);
    assert_eq!(probe(&image), Ok(Some(found)));
}
