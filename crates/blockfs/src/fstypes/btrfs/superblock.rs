//! The superblock of a btrfs.

use rustix::io::Errno;

use crate::fstypes::descriptor::{Superblock, field};
use crate::signature::{Restriction, Signature, Uuid};

pub(super) const SUPERBLOCK: Superblock = Superblock {
    offset: 0x1_0000,
    length: 0x100,
    parse,
};

/// A seed can be mounted read-only alone (btrfs-seed(5)).
static SEED: Restriction = Restriction {
    errno: Errno::ACCESS,
    reason: "it is a btrfs seed, which is only ever mounted read-only, and a read-write mount was asked for",
    hint: "mark the volume read-only, or clear the flag where no other btrfs was grown from it (btrfstune -S 0)",
};

/// `struct btrfs_super_block` (`include/uapi/linux/btrfs_tree.h`), packed; the size is that of its
/// `dev_item`, the device that this copy is on.
fn parse(superblock: &[u8]) -> Option<Signature> {
    /// The superblock's flag `BTRFS_SUPER_FLAG_SEEDING`.
    const SEEDING: u64 = 1 << 32;
    let sector = u64::from(u32::from_le_bytes(field(superblock, 0x90)));
    let is_seed = u64::from_le_bytes(field(superblock, 0x38)) & SEEDING != 0;
    (superblock[0x40..0x48] == *b"_BHRfS_M").then(|| Signature {
        fstype: "btrfs",
        uuid: Uuid(field(superblock, 0x20)),
        size: u64::from_le_bytes(field(superblock, 0xd1)),
        block: sector,
        devices: u64::from_le_bytes(field(superblock, 0x88)),
        sector,
        is_read_only: false,
        restriction: is_seed.then_some(&SEED),
    })
}
