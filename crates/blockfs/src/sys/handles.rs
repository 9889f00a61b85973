//! What `O_PATH` descriptors and threads of ours need.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sched::CloneFlags;
use rustix::io::Errno;

use super::{last_errno, unshare};

/// The same number on every architecture that Rust's `std` knows on Linux.
const FCHMODAT2: libc::c_long = 452;

/// Sets the mode of what `entry` refers to, which may be `O_PATH` and isn't a symbolic link.
///
/// Errors are `fchmodat2(2)`'s: ENOSYS before Linux 6.6.
pub(crate) fn set_mode(entry: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    fchmodat2(entry.as_raw_fd(), mode)
}

/// Whether [`set_mode`] works here. Asked of no file, so that an answer which isn't the call's own,
/// such as a seccomp filter's, isn't taken for one.
pub(crate) fn has_set_mode() -> bool {
    fchmodat2(-1, 0) == Err(Errno::BADF)
}

fn fchmodat2(fd: i32, mode: u32) -> Result<(), Errno> {
    // SAFETY: the path is a static NUL-terminated empty string, which AT_EMPTY_PATH makes mean `fd`;
    // that is a number, which the kernel looks up.
    let result = unsafe { libc::syscall(FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Gives the calling thread a root, a working directory and a umask that other threads don't share:
/// setns(2) of a mount namespace is refused to a thread that shares them, and one that ends does so
/// for a moment after it was joined (`do_exit` tells of the end before it lets go of them).
pub fn unshare_place() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_FS)
}
