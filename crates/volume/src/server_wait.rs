//! Waits for file servers with a timeout. A call on a share whose server doesn't answer can't be interrupted, except by
//! a fatal signal. So the process either leaves the call to a thread that it doesn't wait for, or it ends itself.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crust_blockfs::errno::from_io_error;
use crust_blockfs::sys::unshare_fs;
use crust_state::Volume;

use super::context::Context;
use super::error::{Cause, VolumeError};

/// Runs `work` on a thread, and returns its result; `None` if the timeout passes first.
///
/// The thread then stays behind until the server answers or the process ends.
pub(super) fn run_with_timeout<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Cause> {
    let (sender, result) = channel();
    spawn(move || {
        // Nobody receives the result after the timeout.
        let _ = sender.send(work());
    })?;
    Ok(result.recv_timeout(timeout).ok())
}

/// Starts a thread that doesn't keep this one from entering a mount namespace: setns(2) refuses a thread that shares its
/// root directory with others.
fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), Cause> {
    let (sender, started) = channel();
    let spawned = thread::Builder::new().spawn(move || {
        let unshared = unshare_fs();
        let is_unshared = unshared.is_ok();
        let _ = sender.send(unshared);
        if is_unshared {
            run();
        }
    });
    let failed = |call: &str, errno| Cause::Call {
        call: call.to_owned(),
        errno,
    };
    let _detached = spawned.map_err(|error| failed("clone", from_io_error(&error)))?;
    match started.recv() {
        Ok(unshared) => unshared.map_err(|errno| failed("unshare(CLONE_FS)", errno)),
        Err(_) => Err(failed("clone", rustix::io::Errno::AGAIN)),
    }
}

/// The time that an operation gets to report its own error after its deadline.
const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// Ends this process if an operation on a share hasn't ended by its deadline. Dropping it ends the watch.
///
/// The operation may be in a call that waits for the server. Ending the process leaves nothing behind, as a crash
/// doesn't: its locks are released, its mounts aren't attached yet, and its pending users are stale.
#[derive(Debug)]
pub struct Watchdog {
    _ended: Sender<()>,
}

impl Watchdog {
    /// Starts to watch an operation on a volume; `None` if the volume isn't a share. After the context's deadline,
    /// `report` gets the error, and returns the exit code with which the process ends.
    pub fn watch(
        context: &Context<'_>,
        volume: &Volume,
        report: impl FnOnce(VolumeError) -> i32 + Send + 'static,
    ) -> Result<Option<Self>, VolumeError> {
        let started = Self::start(context, volume, report);
        started.map_err(|cause| VolumeError::new(volume.target(), cause))
    }

    /// Starts to watch as [`watch`](Self::watch) does, with an error that doesn't name the volume yet.
    pub(super) fn start(
        context: &Context<'_>,
        volume: &Volume,
        report: impl FnOnce(VolumeError) -> i32 + Send + 'static,
    ) -> Result<Option<Self>, Cause> {
        let (Some(share), Some(remaining)) = (volume.info().share()?, context.deadline.remaining())
        else {
            return Ok(None);
        };
        let (ended, watched) = channel();
        let error = VolumeError::new(volume.target(), Cause::NoAnswerUntilDeadline(share));
        spawn(move || {
            let result = watched.recv_timeout(remaining + GRACE_PERIOD);
            if result == Err(RecvTimeoutError::Timeout) {
                end_process(report(error));
            }
        })?;
        Ok(Some(Self { _ended: ended }))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "main can't return while its thread waits for a server"
)]
fn end_process(exit_code: i32) -> ! {
    std::process::exit(exit_code)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn work_that_hangs_does_not_keep_the_caller() {
        let answered = run_with_timeout(Duration::from_secs(60), || 7);
        assert_eq!(answered.unwrap(), Some(7));
        // A thread of its own, because the test program's threads share their root directory.
        let caller = thread::spawn(|| {
            unshare_fs().unwrap();
            let (unblock, blocked) = channel::<()>();
            let hung = run_with_timeout(Duration::from_millis(10), move || blocked.recv());
            assert!(hung.unwrap().is_none());
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let namespace = open("/proc/thread-self/ns/mnt", flags, Mode::empty()).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)).unwrap();
            drop(unblock);
        });
        caller.join().unwrap();
    }
}
