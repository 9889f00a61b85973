//! System calls that may never come back, made by a process that nobody waits for.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::process::Pid;

use super::last_errno;

/// Something that is asked, and may not answer.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    /// stat(2) of a path.
    Path(CString),
    /// A loop device, by its node: which file is it on?
    Loop(CString),
}

/// Starts a process that asks one question after the other, and writes the number of each to `tell`, in
/// the machine's own order of bytes, once there is an answer, whatever it is. It has no other descriptor
/// of this one's, so that it holds no lock and nobody's output, and it dies with the thread that started
/// it; where a call never comes back, it stays until that does. Nobody is told of its end: see [`ended`].
///
/// A thread wouldn't do: exec(2) and `exit_group(2)` wait until all of a process's threads are gone, and
/// in some calls one can't be killed.
///
/// Errors are clone(2)'s.
pub(crate) fn start_asking(questions: &[(u32, &Question)], tell: impl AsFd) -> Result<Pid, Errno> {
    let tell = tell.as_fd().as_raw_fd();
    // SAFETY: without flags the child has memory of its own, and goes on with a copy of ours; it makes
    // nothing but system calls on what it finds there, so that no lock of another thread can hold it up,
    // and never returns. Where all arguments are 0 their order, which depends on the processor, is no
    // matter; without a signal nobody is told of its end.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        // SAFETY: paths are NUL-terminated and, as `questions`, in the copied memory; `info` has the size
        // of `struct loop_info64` and `stat` more than that of `struct stat`; descriptors are ours.
        unsafe {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if tell > 0 {
                libc::syscall(libc::SYS_close_range, 0, tell - 1, 0);
            }
            libc::syscall(libc::SYS_close_range, tell + 1, libc::c_uint::MAX, 0);
            for (number, question) in questions {
                ask(question);
                libc::syscall(
                    libc::SYS_write,
                    tell,
                    std::ptr::from_ref(number),
                    size_of::<u32>(),
                );
            }
            libc::_exit(0)
        }
    }
    let child = i32::try_from(child).ok().filter(|child| *child > 0);
    child.and_then(Pid::from_raw).ok_or_else(last_errno)
}

/// # Safety
///
/// None of its own; it is for a process that may make system calls only.
unsafe fn ask(question: &Question) {
    match question {
        Question::Path(path) => {
            let mut stat = [0_u64; 64];
            // SAFETY: see above; the kernel writes a `struct stat`, of 144 bytes or fewer.
            unsafe {
                libc::syscall(
                    libc::SYS_newfstatat,
                    libc::AT_FDCWD,
                    path.as_ptr(),
                    stat.as_mut_ptr(),
                    0,
                )
            };
        }
        Question::Loop(node) => {
            /// `LOOP_GET_STATUS64` of `include/uapi/linux/loop.h`.
            const GET_STATUS: u32 = 0x4C05;
            let mut info = [0_u64; 32];
            let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
            // SAFETY: see above; a loop device writes 232 bytes, others say ENOTTY.
            unsafe {
                let device =
                    libc::syscall(libc::SYS_openat, libc::AT_FDCWD, node.as_ptr(), flags, 0);
                if device >= 0 {
                    libc::syscall(libc::SYS_ioctl, device, GET_STATUS, info.as_mut_ptr());
                    libc::syscall(libc::SYS_close, device);
                }
            }
        }
    }
}

/// Whether such a process is gone; `is_waited_for`: this waits until it is.
pub(crate) fn ended(child: Pid, is_waited_for: bool) -> bool {
    let how = if is_waited_for { 0 } else { libc::WNOHANG };
    // SAFETY: no status is asked for. `__WALL`: a child that sends no signal is found only so.
    let found = unsafe {
        libc::waitpid(
            child.as_raw_nonzero().get(),
            std::ptr::null_mut(),
            how | libc::__WALL,
        )
    };
    // Without such a child (ECHILD) there is nothing left of it either.
    found != 0
}
