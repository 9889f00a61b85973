//! Other processes' mount namespaces: going there, and coming back.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, open, stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, chroot, fchdir, pidfd_open};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
};

use crust_blockfs::errno::Name;

/// The error of entering a namespace. The caller stays where it was.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", Name(*errno))]
pub struct NamespaceError {
    /// The call, with its arguments.
    pub call: String,
    /// The kernel's answer; ESRCH when the process has ended.
    pub errno: Errno,
}

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> NamespaceError {
    let call = call.into();
    move |errno| NamespaceError { call, errno }
}

/// The mount namespace of a running process, named by a descriptor of the process: a pid that is
/// given to another process later changes nothing.
#[derive(Debug)]
pub struct MountNamespace {
    pidfd: OwnedFd,
    pid: i32,
}

impl MountNamespace {
    /// Returns the namespace of the process that has `pid` now. A caller that has to be sure *which* process that is
    /// checks it after this call, when the descriptor keeps it from changing.
    pub fn of(pid: i32) -> Result<Self, NamespaceError> {
        let call = format!("pidfd_open({pid})");
        let known = Pid::from_raw(pid)
            .ok_or(Errno::SRCH)
            .map_err(failed(&*call))?;
        let pidfd = pidfd_open(known, PidfdFlags::empty()).map_err(failed(call))?;
        Ok(Self { pidfd, pid })
    }

    /// The process, as it was named.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs `work` with this as the calling thread's mount namespace, and `/` and the working
    /// directory at its root; then comes back with all three as they were.
    ///
    /// # Panics
    ///
    /// When it can't come back: whatever the caller did next would be done to the wrong files.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T, NamespaceError> {
        // setns(2) of a mount namespace resets root and working directory. Bundles given by cwd
        // or by relative path must still work, so both are taken along as descriptors.
        let path_only = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let read_only = OFlags::RDONLY | OFlags::CLOEXEC;
        let home = open("/proc/thread-self/ns/mnt", read_only, Mode::empty())
            .map_err(failed("open(\"/proc/thread-self/ns/mnt\")"))?;
        let root = open("/", path_only, Mode::empty()).map_err(failed("open(\"/\")"))?;
        let cwd = rustix::fs::openat(CWD, ".", path_only, Mode::empty())
            .map_err(failed("open(\".\")"))?;
        move_into_thread_name_spaces(self.pidfd.as_fd(), ThreadNameSpaceType::MOUNT)
            .map_err(failed(format!("setns(pidfd of {}, CLONE_NEWNS)", self.pid)))?;
        let done = work();
        if let Err(errno) = come_back(&home, &root, &cwd) {
            panic!(
                "can't come back from the mount namespace of process {}: {}",
                self.pid,
                Name(errno)
            );
        }
        Ok(done)
    }
}

/// Whether a process is in another user namespace than the calling one.
pub(crate) fn has_own_user_namespace(pid: i32) -> Result<bool, Errno> {
    let of = |process: &str| stat(format!("/proc/{process}/ns/user"));
    let (theirs, ours) = (of(&pid.to_string())?, of("self")?);
    Ok((theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino))
}

/// Goes on after an error: whoever tells of it opens a log by its path.
fn come_back(home: &OwnedFd, root: &OwnedFd, cwd: &OwnedFd) -> Result<(), Errno> {
    let moved = move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Mount));
    let rooted = fchdir(root).and_then(|()| chroot("."));
    let there = fchdir(cwd);
    moved.and(rooted).and(there)
}
