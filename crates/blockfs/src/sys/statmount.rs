//! `statmount(2)` (Linux 6.8): what the kernel knows of a mount by its id, without the mount table.

use std::mem::{offset_of, size_of};

use rustix::io::Errno;

/// `__NR_statmount`: a call that is newer than 5.1 has the same number on every architecture but Alpha.
const STATMOUNT: libc::c_long = 457;
/// `STATMOUNT_SB_BASIC`: the superblock's device, magic number and flags.
const SB_BASIC: u64 = 1;

/// `struct mnt_id_req`, version 0.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    wanted: u64,
}

/// `struct statmount` up to and with `sb_magic`; the kernel writes no more than it is given room for.
#[repr(C)]
#[derive(Default)]
struct Answer {
    size: u32,
    mount_options: u32,
    mask: u64,
    device_major: u32,
    device_minor: u32,
    magic: u64,
}

/// Returns the magic number of the superblock that is mounted, as statfs(2) gives it in `f_type`. `mount` is a
/// unique id (`STATX_MNT_ID_UNIQUE`). The kernel answers from memory and asks no file server.
///
/// Errors are `statmount(2)`'s: ENOENT when no such mount is in the caller's namespace, ENOSYS before Linux 6.8.
pub(crate) fn superblock_magic(mount: u64) -> Result<u64, Errno> {
    let request = Request {
        size: u32::try_from(size_of::<Request>()).map_err(|_| Errno::INVAL)?,
        spare: 0,
        mount,
        wanted: SB_BASIC,
    };
    let mut answer = Answer::default();
    // SAFETY: `request` is a `struct mnt_id_req` of the size that it states, which the kernel only reads. Into
    // `answer` it writes at most the size that is passed, and each of its fields may have any value.
    let result = unsafe {
        libc::syscall(
            STATMOUNT,
            &raw const request,
            &raw mut answer,
            size_of::<Answer>(),
            0_u32,
        )
    };
    if result != 0 {
        return Err(super::last_errno());
    }
    let is_told = answer.mask & SB_BASIC != 0;
    is_told.then_some(answer.magic).ok_or(Errno::OPNOTSUPP)
}

const _: () = assert!(offset_of!(Answer, magic) == 24);
