//! `statmount(2)` (Linux 6.8), which returns properties of a mount by its id, without the mount table.

use std::mem::{offset_of, size_of};

use rustix::io::Errno;

/// `__NR_statmount`. Calls since Linux 5.1 have the same number on every architecture except Alpha.
const STATMOUNT: libc::c_long = 457;
/// `STATMOUNT_SB_BASIC`: the superblock's device, magic number and flags.
const SB_BASIC: u64 = 1;

/// `struct mnt_id_req`, version 0.
#[repr(C)]
struct MountIdRequest {
    size: u32,
    spare: u32,
    mount: u64,
    fields: u64,
}

/// `struct statmount` up to and including `sb_magic`. The kernel writes at most the size that is passed to it.
#[repr(C)]
#[derive(Default)]
struct StatMount {
    size: u32,
    mount_options: u32,
    mask: u64,
    device_major: u32,
    device_minor: u32,
    magic: u64,
}

/// Returns the magic number of a mount's superblock, which is `f_type` of statfs(2). `mount` is a unique id
/// (`STATX_MNT_ID_UNIQUE`). Doesn't wait for a file server.
///
/// Fails with the error of `statmount(2)`: ENOENT if no such mount is in the caller's namespace, ENOSYS before Linux
/// 6.8. Fails with EOPNOTSUPP if the kernel returns no magic number.
pub(crate) fn superblock_magic(mount: u64) -> Result<u64, Errno> {
    let request = MountIdRequest {
        size: u32::try_from(size_of::<MountIdRequest>()).map_err(|_| Errno::INVAL)?,
        spare: 0,
        mount,
        fields: SB_BASIC,
    };
    let mut status = StatMount::default();
    // SAFETY: `request` is a `struct mnt_id_req` of the size that it states, and the kernel only reads it. The kernel
    // writes at most the passed size to `status`, whose fields may have any value.
    let result = unsafe {
        libc::syscall(
            STATMOUNT,
            &raw const request,
            &raw mut status,
            size_of::<StatMount>(),
            0_u32,
        )
    };
    if result != 0 {
        return Err(super::last_errno());
    }
    let has_magic = status.mask & SB_BASIC != 0;
    has_magic.then_some(status.magic).ok_or(Errno::OPNOTSUPP)
}

const _: () = assert!(offset_of!(StatMount, magic) == 24);
