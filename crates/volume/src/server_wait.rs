//! Waits for file servers with a timeout. A call on a share whose server doesn't answer can't be interrupted, except by
//! a fatal signal. So the process either leaves the call to a thread that it doesn't wait for, or it ends itself.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crust_state::Volume;

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::thread;

/// The time for which the server of a mounted share may take to answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `work` on a thread, and returns its result; `None` if the timeout passes first.
///
/// The thread then stays behind until the server answers or the process ends.
pub(super) fn run_with_timeout<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Cause> {
    let (sender, result) = channel();
    thread::spawn(move || {
        // Nobody receives the result after the timeout.
        let _ = sender.send(work());
    })?;
    Ok(result.recv_timeout(timeout).ok())
}

/// The time that an operation gets to report its own error after its deadline. Unmounting a share can take seconds,
/// because the kernel drops its cached files. Every caller's own timeout is at least ten seconds after the deadline.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// Ends this process if an operation on a share hasn't ended by its deadline. Dropping it ends the watch. Drop it before
/// the operation's own error is reported: while the process is being ended, `drop` blocks. So only one error is
/// reported.
///
/// The operation may be in a call that waits for the server. Ending the process is safe, as after a crash: its locks are
/// released, its mounts aren't attached yet, and its pending users are stale. When it gives up its
/// mounts, the process doesn't wait for the server, because another one holds them (`mount_holder`).
#[derive(Debug)]
pub struct Watchdog(Arc<Operation>);

/// Whether the operation has ended. The lock is held while the process is being ended.
#[derive(Debug, Default)]
struct Operation {
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.0.lock() = true;
        self.0.changed.notify_all();
    }
}

impl Operation {
    fn lock(&self) -> MutexGuard<'_, bool> {
        let locked = self.has_ended.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
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
        let error = VolumeError::new(volume.target(), Cause::NoAnswerUntilDeadline(share));
        let timeout = remaining + GRACE_PERIOD;
        Self::end_after(timeout, move || end_process(report(error))).map(Some)
    }

    /// Calls `end` on another thread unless this is dropped within the timeout.
    fn end_after(timeout: Duration, end: impl FnOnce() + Send + 'static) -> Result<Self, Cause> {
        let watchdog = Self(Arc::default());
        let operation = Arc::clone(&watchdog.0);
        thread::spawn(move || {
            let is_running = |has_ended: &mut bool| !*has_ended;
            let changed = &operation.changed;
            let waited = changed.wait_timeout_while(operation.lock(), timeout, is_running);
            let (has_ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !*has_ended {
                end();
            }
        })?;
        Ok(watchdog)
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
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use crust_blockfs::sys::unshare_fs;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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

    /// Otherwise the operation's own error would be reported while the process is being ended with another one.
    #[test]
    fn a_watchdog_that_ends_the_process_is_not_dropped_meanwhile() {
        let (sender, started) = channel();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let watchdog = Watchdog::end_after(Duration::ZERO, move || {
            sender.send(()).unwrap();
            thread::sleep(Duration::from_millis(100));
            done.store(true, Ordering::SeqCst);
        });
        started.recv().unwrap();
        drop(watchdog.unwrap());
        assert!(is_done.load(Ordering::SeqCst));
    }

    #[test]
    fn a_dropped_watchdog_does_not_end_the_process() {
        let (sender, ended) = channel();
        let watchdog = Watchdog::end_after(Duration::from_secs(60), move || {
            let _ = sender.send(());
        });
        drop(watchdog.unwrap());
        assert!(ended.recv().is_err());
    }
}
