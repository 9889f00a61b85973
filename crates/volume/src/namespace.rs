//! Enters the mount namespaces of other processes and returns from them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, open, stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, chroot, fchdir, pidfd_open};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
};

use crust_blockfs::errno::Name;

/// An error of entering a namespace. The calling thread is still in its own namespace.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", Name(*errno))]
pub struct NamespaceError {
    /// The failed call with its arguments.
    pub call: String,
    /// `ESRCH` if the process has ended.
    pub errno: Errno,
}

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> NamespaceError {
    let call = call.into();
    move |errno| NamespaceError { call, errno }
}

/// The mount namespace of a running process. The process is referred to by a pidfd, so that reuse of its pid has no
/// effect.
#[derive(Debug)]
pub struct MountNamespace {
    pidfd: OwnedFd,
    pid: i32,
}

impl MountNamespace {
    /// Opens the namespace of the process that has `pid` now.
    ///
    /// A caller that has to be sure which process this is must check the process after this call. From then on the
    /// pidfd always refers to the same process.
    pub fn open(pid: i32) -> Result<Self, NamespaceError> {
        let call = format!("pidfd_open({pid})");
        let valid_pid = Pid::from_raw(pid)
            .ok_or(Errno::SRCH)
            .map_err(failed(&*call))?;
        let pidfd = pidfd_open(valid_pid, PidfdFlags::empty()).map_err(failed(call))?;
        Ok(Self { pidfd, pid })
    }

    /// Returns the pid that was passed to [`Self::open`].
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Moves the calling thread to the network namespace of the process, for good.
    pub(crate) fn enter_network(&self) -> Result<(), NamespaceError> {
        move_into_thread_name_spaces(self.pidfd.as_fd(), ThreadNameSpaceType::NETWORK).map_err(
            failed(format!("setns(pidfd of {}, CLONE_NEWNET)", self.pid)),
        )
    }

    /// Runs `work` on the calling thread in this mount namespace, with `/` and the working directory at its root. Then
    /// restores the thread's namespace, root and working directory.
    ///
    /// # Panics
    ///
    /// Panics if they can't be restored, because the caller would go on to act on the wrong files.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T, NamespaceError> {
        // setns(2) of a mount namespace resets root and working directory. Bundles that are given by the working
        // directory or by a relative path must still work afterwards, so both are kept open.
        let path_only = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let read_only = OFlags::RDONLY | OFlags::CLOEXEC;
        let own_namespace = open("/proc/thread-self/ns/mnt", read_only, Mode::empty())
            .map_err(failed("open(\"/proc/thread-self/ns/mnt\")"))?;
        let root = open("/", path_only, Mode::empty()).map_err(failed("open(\"/\")"))?;
        let cwd = rustix::fs::openat(CWD, ".", path_only, Mode::empty())
            .map_err(failed("open(\".\")"))?;
        move_into_thread_name_spaces(self.pidfd.as_fd(), ThreadNameSpaceType::MOUNT)
            .map_err(failed(format!("setns(pidfd of {}, CLONE_NEWNS)", self.pid)))?;
        let result = work();
        if let Err(errno) = restore(&own_namespace, &root, &cwd) {
            panic!(
                "can't return from the mount namespace of process {}: {}",
                self.pid,
                Name(errno)
            );
        }
        Ok(result)
    }
}

/// Returns true if a process is in another user namespace than the calling process.
pub(crate) fn has_own_user_namespace(pid: i32) -> Result<bool, Errno> {
    let user_namespace = |process: &str| stat(format!("/proc/{process}/ns/user"));
    let (other, own) = (user_namespace(&pid.to_string())?, user_namespace("self")?);
    Ok((other.st_dev, other.st_ino) != (own.st_dev, own.st_ino))
}

/// Restores namespace, root and working directory. Continues after an error, because the panic hook opens a log by its
/// path.
fn restore(namespace: &OwnedFd, root: &OwnedFd, cwd: &OwnedFd) -> Result<(), Errno> {
    let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount));
    let rooted = fchdir(root).and_then(|()| chroot("."));
    let changed = fchdir(cwd);
    entered.and(rooted).and(changed)
}
