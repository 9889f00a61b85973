//! Superblocks, which whoever wrote the volume has made up.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crust_blockfs::fstypes::is_mounted_as;
use crust_blockfs::probe::probe;
use rustix::fs::{MemfdFlags, memfd_create};

/// Where the superblocks of ext, xfs and btrfs are.
const PLACES: [u64; 3] = [0x400, 0, 0x1_0000];

/// The first bytes of a superblock; the first byte says of which file system.
pub fn superblock(bytes: &[u8]) {
    let Some((which, content)) = bytes.split_first() else {
        return;
    };
    let place = PLACES[usize::from(*which) % PLACES.len()];
    let image = memfd_create("superblock", MemfdFlags::CLOEXEC).expect("memfd_create");
    let image = File::from(image);
    image.set_len(place + 0x1000).expect("ftruncate");
    image.write_all_at(content, place).expect("pwrite");
    let Some(found) = probe(&image).expect("a file can be read") else {
        return;
    };
    assert!(is_mounted_as(found.fstype, found.fstype));
    assert_eq!(found.uuid.to_string().len(), 36);
    assert_eq!(probe(&image), Ok(Some(found)));
}
