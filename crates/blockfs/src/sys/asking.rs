//! System calls that may never come back, made by a process that nobody waits for.

use std::ffi::{CString, c_char, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::DeviceNumber;
use rustix::fs::{fstat, major, minor};
use rustix::io::Errno;
use rustix::process::Pid;

use super::last_errno;
use super::loops::{LoopFile, LoopStatus, encoded, loop_status, number as number_of};

/// Something that is asked, and may not answer.
#[derive(Debug, Clone)]
pub enum Question {
    /// stat(2) of a path.
    Path(CString),
    /// A loop device, by its node: which file is it on?
    Loop(CString),
}

/// So many loop devices one process asks: each is a descriptor.
pub(crate) const MOST_LOOPS: usize = 512;

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Which loop device the node was, and what that shows. `None`: it is none, shows nothing, or can't
    /// tell; or a path was asked about.
    pub(crate) shown: Option<(DeviceNumber, LoopStatus)>,
}

/// Where answers are written by who asks, and read by who waits: pages that both have. A pipe would wake the one
/// who waits for each of some hundreds.
#[derive(Debug)]
pub(crate) struct Board {
    slots: NonNull<Slot>,
    count: usize,
}

/// An answer: the first word says that the others are one. No device is 0:0.
type Slot = [AtomicU64; 8];

impl Board {
    /// For so many answers. Errors are mmap(2)'s.
    pub(crate) fn new(count: usize) -> Result<Self, Errno> {
        let size = Self::size(count).ok_or(Errno::NOMEM)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever there is room.
        let pages = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
        if pages == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let slots = NonNull::new(pages.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { slots, count })
    }

    /// Returns the size in bytes of the pages for so many answers. mmap(2) refuses to map nothing.
    fn size(count: usize) -> Option<usize> {
        count.max(1).checked_mul(size_of::<Slot>())
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: the pages hold so many, and zeros are one; they are nobody's but through this, and stay as long
        // as it does. Whoever else has them is another process with the same code, by atomic words alone.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.count) }
    }

    /// The question with the number was answered. Calls nothing, so that a process may that has only system calls.
    fn tell(&self, number: u32, answer: Answer) {
        let Some([is_told, words @ ..]) = self.slots().get(number as usize) else {
            return;
        };
        if let Some((node, status)) = answer.shown {
            let LoopFile {
                device,
                inode,
                disk,
            } = status.file;
            let disk = disk.map_or(0, encoded);
            let (offset, limit, flags) = (status.offset, status.size_limit, status.flags);
            let told = [
                encoded(node),
                device,
                inode,
                disk,
                offset,
                limit,
                flags.into(),
            ];
            for (word, told) in words.iter().zip(told) {
                word.store(told, Ordering::Relaxed);
            }
        }
        is_told.store(1, Ordering::Release);
    }

    /// What was answered to the question with the number by now.
    pub(crate) fn answer(&self, number: u32) -> Option<Answer> {
        let [is_told, words @ ..] = self.slots().get(number as usize)?;
        if is_told.load(Ordering::Acquire) == 0 {
            return None;
        }
        let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let [node, device, inode, disk, offset, size_limit, flags] = words;
        let file = LoopFile {
            device,
            inode,
            disk: (disk != 0).then(|| number_of(disk)),
        };
        let status = LoopStatus {
            file,
            offset,
            size_limit,
            flags: u32::try_from(flags).unwrap_or_default(),
        };
        let shown = (node != 0).then(|| (number_of(node), status));
        Some(Answer { shown })
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let size = Self::size(self.count).unwrap_or_default();
        // SAFETY: mapped with this size. A process that still asks has the pages by itself.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), size) };
    }
}

/// Starts a process that asks one question after the other, and notes on the board what was answered, whatever
/// that is. It has `end` open until it has ended, however it does, and has let go of the devices.
///
/// Where a call never comes back, it stays until that does. So it holds nothing of this one's: no other
/// descriptor, and with it no lock and nobody's output; and where it asks loop devices no mount either,
/// for it is in a namespace without any. (A path it has to look up among this one's mounts.) It dies with the
/// thread that started it. Nobody is told of its end: see [`ended`].
///
/// A thread wouldn't do: exec(2) and `exit_group(2)` wait until all of a process's threads are gone, and
/// in some calls one can't be killed.
///
/// Errors are clone(2)'s.
pub(crate) fn start_asking(
    questions: &[(u32, &Question)],
    board: &Board,
    end: impl AsFd,
) -> Result<Pid, Errno> {
    let end = end.as_fd().as_raw_fd();
    // Allocated here: the child must not.
    let mut devices = vec![NONE; questions.len()];
    // SAFETY: without flags the child has memory of its own, and goes on with a copy of ours; it makes
    // nothing but system calls on what it finds there, and atomic writes to the board, which alone both have: so
    // no lock of another thread can hold it up, and it never returns. Where all arguments are 0 their order, which
    // depends on the processor, is no matter; without a signal nobody is told of its end.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        // SAFETY: these have no pointers; what the others are given is in the copied memory, and the board's
        // pages are this process's as well, whatever the other one unmaps.
        unsafe {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The lowest descriptor of a process that ends is the last that is let go of: they are put on a stack
            // (`close_files`, then `task_work_run`), and the pipe's end says that the devices' is over.
            libc::syscall(libc::SYS_dup3, end, 0, 0);
            libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
            open_loops(questions, &mut devices);
            for ((number, question), device) in questions.iter().zip(&devices) {
                let shown = ask(question, *device);
                board.tell(*number, Answer { shown });
            }
            libc::_exit(0)
        }
    }
    let child = i32::try_from(child).ok().filter(|child| *child > 0);
    child.and_then(Pid::from_raw).ok_or_else(last_errno)
}

/// No descriptor.
const NONE: c_long = -1;

/// Opens the loop devices, and leaves the mounts behind. Where there is no room for more descriptors,
/// this is the end.
///
/// # Safety
///
/// It is for a process that may make system calls only, and is about to ask and to end.
unsafe fn open_loops(questions: &[(u32, &Question)], devices: &mut [c_long]) {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut has_loops = false;
    for ((_, question), device) in questions.iter().zip(devices) {
        let Question::Loop(node) = question else {
            continue;
        };
        has_loops = true;
        // SAFETY: the path is NUL-terminated, and in the copied memory.
        unsafe {
            *device = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, node.as_ptr(), flags, 0);
            let errno = *libc::__errno_location();
            if *device < 0 && matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM) {
                libc::_exit(1);
            }
        }
    }
    if !has_loops {
        return;
    }
    let (root, none) = (c"/".as_ptr(), ptr::null::<c_char>());
    // SAFETY: paths are static, and the kernel takes no others for these. What is unmounted is a copy of
    // the process's own, and private, so that nobody else's mount goes.
    unsafe {
        if libc::syscall(libc::SYS_unshare, libc::CLONE_NEWNS) == 0
            && libc::syscall(libc::SYS_mount, none, root, none, PRIVATE, none) == 0
        {
            libc::syscall(libc::SYS_umount2, root, libc::MNT_DETACH);
        }
    }
}

/// All mounts there are.
const PRIVATE: libc::c_ulong = libc::MS_REC | libc::MS_PRIVATE;

/// # Safety
///
/// As above.
unsafe fn ask(question: &Question, device: c_long) -> Option<(DeviceNumber, LoopStatus)> {
    match question {
        Question::Path(path) => {
            let mut stat = [0_u64; 64];
            // SAFETY: the path is NUL-terminated; the kernel writes a `struct stat`, of 144 bytes or fewer.
            unsafe {
                libc::syscall(
                    libc::SYS_newfstatat,
                    libc::AT_FDCWD,
                    path.as_ptr(),
                    stat.as_mut_ptr(),
                    0,
                )
            };
            None
        }
        Question::Loop(_) => {
            let device = i32::try_from(device).ok().filter(|device| *device >= 0)?;
            // SAFETY: it was opened, and isn't closed before the process ends.
            let device = unsafe { BorrowedFd::borrow_raw(device) };
            let status = loop_status(device).ok()?;
            let node = fstat(device).ok()?.st_rdev;
            Some((DeviceNumber::new(major(node), minor(node)), status))
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
            ptr::null_mut(),
            how | libc::__WALL,
        )
    };
    // Without such a child (ECHILD) there is nothing left of it either.
    found != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_told() {
        let device = |minor| DeviceNumber::new(7, minor);
        let status = |disk| LoopStatus {
            file: LoopFile {
                device: 0x1111_0370,
                inode: u64::MAX - 1,
                disk,
            },
            offset: 1 << 40,
            size_limit: 512,
            flags: 0x8000_0004,
        };
        let all = [
            None,
            Some((device(0), status(None))),
            Some((device(70_000), status(Some(device(3))))),
        ];
        let board = Board::new(all.len() + 1).unwrap();
        for (number, shown) in (0..).zip(all) {
            assert_eq!(board.answer(number), None);
            board.tell(number, Answer { shown });
            assert_eq!(board.answer(number), Some(Answer { shown }));
        }
        assert_eq!(board.answer(3), None, "nobody answered");
        board.tell(4, Answer { shown: None });
        assert_eq!(board.answer(4), None, "there is no such question");
    }
}
