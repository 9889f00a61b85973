//! System calls that may never return, made by a child process that can be left behind.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, major, minor, openat, statat};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::stdio::dup2_stdin;

use super::loops::{LoopFile, LoopStatus, encoded, loop_status, number as number_of};
use super::{exit_child, last_errno, unshare_mount_namespace};
use crate::DeviceNumber;

/// A probe that may hang.
#[derive(Debug, Clone)]
pub enum Question {
    /// stat(2) of a path.
    Path(CString),
    /// A loop device, by its node: which file is it on?
    Loop(CString),
}

/// The most loop devices that one process probes: each takes a descriptor.
pub(crate) const MOST_LOOPS: usize = 512;

/// The answer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The number of the loop device that the node led to, and the device's status. `None`: it led to none, or to one
    /// without a file or that can't be read; or the question was about a path.
    pub(crate) shown: Option<(DeviceNumber, LoopStatus)>,
}

/// Memory shared with the child process, which writes the answers there. A pipe would wake the waiting process for each
/// of some hundreds.
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

    /// Returns the answer to the question with this number, if there is one by now.
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

/// Starts a process that asks one question after the other, and notes each answer on the board. It keeps `end` open
/// until it has ended, by whatever cause, and has closed the devices.
///
/// If a call never returns, the process stays as long. So it holds nothing of this process: no other descriptor, and so
/// no lock and no output; and if it asks loop devices no mount either, for it is in a namespace without any. (A path is
/// looked up among this process's mounts.) It is killed with the thread that started it, and sends no signal at its
/// end: see [`ended`].
///
/// A thread wouldn't do: exec(2) and `exit_group(2)` wait until all threads of a process are gone, and in some calls a
/// thread can't be killed.
///
/// Errors are clone(2)'s.
pub(crate) fn start_asking(
    questions: &[(u32, &Question)],
    board: &Board,
    end: impl AsFd,
) -> Result<Pid, Errno> {
    // Allocated here: the child must not.
    let mut devices: Vec<Option<OwnedFd>> = questions.iter().map(|_| None).collect();
    // SAFETY: without flags the child has memory of its own, and goes on with a copy of ours. It makes only system
    // calls on that, and atomic writes to the board, which alone both have. rustix's functions neither allocate nor
    // lock for a `&CStr`, and unshare(2) and close_range(2) are plain calls of the C library. So no lock of another
    // thread can hold the child up, and it never returns. All arguments are 0, so their order, which depends on the
    // processor, is no matter; without a signal in them the child's end sends none.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // The lowest descriptor of a process that ends is the last that is let go of: they are put on a stack
        // (`close_files`, then `task_work_run`), and the pipe's end says that the devices' is over.
        let _ = dup2_stdin(end);
        close_all_but_stdin();
        if open_loops(questions, &mut devices).is_err() {
            exit_child(1);
        }
        for ((number, question), device) in questions.iter().zip(&devices) {
            let shown = ask(question, device.as_ref());
            board.tell(*number, Answer { shown });
        }
        exit_child(0);
    }
    let child = i32::try_from(child).ok().filter(|child| *child > 0);
    child.and_then(Pid::from_raw).ok_or_else(last_errno)
}

/// Closes every descriptor but 0. Neither rustix nor nix has `close_range(2)`.
fn close_all_but_stdin() {
    // SAFETY: called in a process of its own, whose copies of this one's descriptors nobody uses any more.
    unsafe { libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) };
}

/// Opens the loop devices, and leaves the mounts behind. Fails where there is no room for more descriptors. For the
/// process of [`start_asking`], and so without allocations.
fn open_loops(
    questions: &[(u32, &Question)],
    devices: &mut [Option<OwnedFd>],
) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut has_loops = false;
    for ((_, question), device) in questions.iter().zip(devices) {
        let Question::Loop(node) = question else {
            continue;
        };
        has_loops = true;
        match openat(CWD, node.as_c_str(), flags, Mode::empty()) {
            Ok(opened) => *device = Some(opened),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
            Err(_) => {}
        }
    }
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    // What is unmounted is a copy of the process's own, and private, so that nobody else's mount goes.
    if has_loops && unshare_mount_namespace().is_ok() && mount_change(c"/", private).is_ok() {
        let _ = unmount(c"/", UnmountFlags::DETACH);
    }
    Ok(())
}

/// Asks one question. For the process of [`start_asking`], and so without allocations.
fn ask(question: &Question, device: Option<&OwnedFd>) -> Option<(DeviceNumber, LoopStatus)> {
    match question {
        Question::Path(path) => {
            let _ = statat(CWD, path.as_c_str(), AtFlags::empty());
            None
        }
        Question::Loop(_) => {
            let device = device?;
            let status = loop_status(device).ok()?;
            let node = fstat(device).ok()?.st_rdev;
            Some((DeviceNumber::new(major(node), minor(node)), status))
        }
    }
}

/// Returns whether a process of [`start_asking`] is gone. With `is_waited_for` it is waited for first.
pub(crate) fn ended(child: Pid, is_waited_for: bool) -> bool {
    let child = nix::unistd::Pid::from_raw(child.as_raw_nonzero().get());
    // A child that sends no signal at its end is found only with `__WALL`.
    let mut how = WaitPidFlag::__WALL;
    how.set(WaitPidFlag::WNOHANG, !is_waited_for);
    // Without such a child (ECHILD) there is nothing left of it either.
    !matches!(waitpid(child, Some(how)), Ok(WaitStatus::StillAlive))
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
