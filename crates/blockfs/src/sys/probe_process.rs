//! Makes system calls that may never return in a child process that can be left behind.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, major, minor, openat, statat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::stdio::dup2_stdin;

use super::loops::{LoopFile, LoopStatus, decode_device, encode_device, loop_status};
use super::{close_descriptors_from, exit_child, last_errno, leave_all_mounts};
use crate::DeviceNumber;

/// A probe that may hang.
#[derive(Debug, Clone)]
pub enum Probe {
    /// Calls stat(2) on a path.
    Path(CString),
    /// Queries the status of a loop device, by the path of its device node.
    LoopDevice(CString),
}

/// The largest number of loop devices that one process probes. Each takes a descriptor.
pub(crate) const MAX_LOOP_PROBES: usize = 512;

/// The result of a probe that has finished. For a path probe it contains nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeResult {
    /// The number of the loop device that the node led to, and the device's status. `None` for a path, for a node that
    /// isn't a loop device's, and for a loop device that isn't attached or can't be queried.
    pub(crate) loop_status: Option<(DeviceNumber, LoopStatus)>,
}

/// Memory that is shared with the child process, which writes its results there. With a pipe, each of hundreds of
/// results would wake the waiting process.
#[derive(Debug)]
pub(crate) struct SharedResults {
    slots: NonNull<Slot>,
    count: usize,
}

/// One result. The first word is 1 once the result is set. The second word is the number of the loop device, or 0 if
/// there is no status (no device has the number 0:0).
type Slot = [AtomicU64; 8];

impl SharedResults {
    /// Maps memory for `count` results. Fails with the error of mmap(2).
    pub(crate) fn new(count: usize) -> Result<Self, Errno> {
        let size = Self::size(count).ok_or(Errno::NOMEM)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: this makes a new mapping at an address that the kernel chooses.
        let pages = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
        if pages == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let slots = NonNull::new(pages.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { slots, count })
    }

    /// Returns the size of the mapping in bytes. It is never 0, which mmap(2) refuses.
    fn size(count: usize) -> Option<usize> {
        count.max(1).checked_mul(size_of::<Slot>())
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: the mapping holds `count` slots, for which zeroes are valid. In this process it is only reached
        // through `self`, and it lives as long as `self`. The only other user is the child process, which runs the same
        // code and only uses atomic words.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.count) }
    }

    /// Sets the result of the probe with this index. Neither allocates nor locks, because the child process of
    /// [`start_probe_process`] calls it.
    fn set(&self, index: u32, result: ProbeResult) {
        let Some([is_set, words @ ..]) = self.slots().get(index as usize) else {
            return;
        };
        if let Some((number, status)) = result.loop_status {
            let LoopFile {
                device,
                inode,
                disk,
            } = status.file;
            let disk = disk.map_or(0, encode_device);
            let (offset, limit, flags) = (status.offset, status.size_limit, status.flags);
            let values = [
                encode_device(number),
                device,
                inode,
                disk,
                offset,
                limit,
                flags.into(),
            ];
            for (word, value) in words.iter().zip(values) {
                word.store(value, Ordering::Relaxed);
            }
        }
        is_set.store(1, Ordering::Release);
    }

    /// Returns the result of the probe with this index, if it has finished.
    pub(crate) fn get(&self, index: u32) -> Option<ProbeResult> {
        let [is_set, words @ ..] = self.slots().get(index as usize)?;
        if is_set.load(Ordering::Acquire) == 0 {
            return None;
        }
        let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let [number, device, inode, disk, offset, size_limit, flags] = words;
        let file = LoopFile {
            device,
            inode,
            disk: (disk != 0).then(|| decode_device(disk)),
        };
        let status = LoopStatus {
            file,
            offset,
            size_limit,
            flags: u32::try_from(flags).unwrap_or_default(),
        };
        let loop_status = (number != 0).then(|| (decode_device(number), status));
        Some(ProbeResult { loop_status })
    }
}

impl Drop for SharedResults {
    fn drop(&mut self) {
        let size = Self::size(self.count).unwrap_or_default();
        // SAFETY: this is the mapping, with its size. A process that still probes has a mapping of its own.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), size) };
    }
}

/// Starts a process that makes probes one after the other and sets each result. It keeps `pipe` open until it has
/// ended, for whatever reason, and has closed the devices.
///
/// If a call never returns, neither does the process. So it holds nothing that the rest of the program needs: no other
/// descriptor of this process, and therefore no lock and no output, and no mount if it probes loop devices, because
/// then it enters a mount namespace without mounts. (A path is looked up among the mounts of this process.) The process
/// is killed together with the thread that started it, and sends no signal when it ends; see [`has_ended`].
///
/// A thread can't be used instead: exec(2) and `exit_group(2)` wait until all threads of a process have ended, and a
/// thread can't be killed in some calls.
///
/// Fails with the error of clone(2).
pub(crate) fn start_probe_process(
    probes: &[(u32, &Probe)],
    results: &SharedResults,
    pipe: impl AsFd,
) -> Result<Pid, Errno> {
    // Allocated before the clone, since the child must not allocate.
    let mut devices: Vec<Option<OwnedFd>> = probes.iter().map(|_| None).collect();
    // SAFETY: without flags the child has memory of its own, and continues on a copy of this stack. On that memory it
    // makes only system calls, and it writes atomically to `results`, the only memory that both processes share.
    // rustix's functions neither allocate nor lock for a `&CStr`, and unshare(2) and close_range(2) are plain calls of
    // the C library. So no lock of another thread can block the child, and it never returns from this function. The
    // order of the arguments depends on the architecture but doesn't matter, as all are 0. Without a signal among them,
    // the child sends none when it ends.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // When a process ends, the kernel releases its lowest descriptor last: they are put on a stack (`close_files`,
        // then `task_work_run`). So once the pipe is closed, the devices are closed as well.
        let _ = dup2_stdin(pipe);
        let _ = close_descriptors_from(1);
        if open_loop_devices(probes, &mut devices).is_err() {
            exit_child(1);
        }
        for ((index, probe), device) in probes.iter().zip(&devices) {
            let loop_status = run_probe(probe, device.as_ref());
            results.set(*index, ProbeResult { loop_status });
        }
        exit_child(0);
    }
    let child = i32::try_from(child).ok().filter(|child| *child > 0);
    child.and_then(Pid::from_raw).ok_or_else(last_errno)
}

/// Opens the loop devices, and then leaves all mounts behind. Fails if the process or the node has no descriptor or no
/// memory left. Doesn't allocate, because the child process of [`start_probe_process`] calls it.
fn open_loop_devices(
    probes: &[(u32, &Probe)],
    devices: &mut [Option<OwnedFd>],
) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut has_loop_devices = false;
    for ((_, probe), device) in probes.iter().zip(devices) {
        let Probe::LoopDevice(node) = probe else {
            continue;
        };
        has_loop_devices = true;
        match openat(CWD, node.as_c_str(), flags, Mode::empty()) {
            Ok(opened) => *device = Some(opened),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
            Err(_) => {}
        }
    }
    if has_loop_devices {
        let _ = leave_all_mounts();
    }
    Ok(())
}

/// Makes one probe. Doesn't allocate, because the child process of [`start_probe_process`] calls it.
fn run_probe(probe: &Probe, device: Option<&OwnedFd>) -> Option<(DeviceNumber, LoopStatus)> {
    match probe {
        Probe::Path(path) => {
            let _ = statat(CWD, path.as_c_str(), AtFlags::empty());
            None
        }
        Probe::LoopDevice(_) => {
            let device = device?;
            let status = loop_status(device).ok()?;
            let number = fstat(device).ok()?.st_rdev;
            Some((DeviceNumber::new(major(number), minor(number)), status))
        }
    }
}

/// Returns whether a process of [`start_probe_process`] has ended, and reaps it. With `waits`, waits for its end first.
pub(crate) fn has_ended(child: Pid, waits: bool) -> bool {
    let child = nix::unistd::Pid::from_raw(child.as_raw_nonzero().get());
    // waitpid(2) finds a child that sends no signal at its end only with `__WALL`.
    let mut flags = WaitPidFlag::__WALL;
    flags.set(WaitPidFlag::WNOHANG, !waits);
    // If there is no such child (ECHILD), it has ended, too.
    !matches!(waitpid(child, Some(flags)), Ok(WaitStatus::StillAlive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_was_set() {
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
        let results = SharedResults::new(all.len() + 1).unwrap();
        for (index, loop_status) in (0..).zip(all) {
            assert_eq!(results.get(index), None);
            results.set(index, ProbeResult { loop_status });
            assert_eq!(results.get(index), Some(ProbeResult { loop_status }));
        }
        assert_eq!(results.get(3), None, "not set");
        results.set(4, ProbeResult { loop_status: None });
        assert_eq!(results.get(4), None, "no such probe");
    }
}
