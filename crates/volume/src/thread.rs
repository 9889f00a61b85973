//! Threads with a root directory of their own. setns(2) into a mount namespace fails with EINVAL in a process whose
//! threads share it, so a thread that this process starts must not keep it from entering one.

use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::thread;

use crust_blockfs::errno::from_io_error;
use crust_blockfs::sys::unshare_fs;
use rustix::io::Errno;

use super::error::Cause;

/// Starts a thread and doesn't wait for it to end. Returns when the thread has its own root directory.
pub(super) fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), Cause> {
    let (sender, started) = channel();
    let spawned = thread::Builder::new().spawn(move || {
        let unshared = unshare_fs();
        let is_unshared = unshared.is_ok();
        let _ = sender.send(unshared);
        if is_unshared {
            run();
        }
    });
    let _detached = spawned.map_err(|error| failed("clone", from_io_error(&error)))?;
    match started.recv() {
        Ok(unshared) => unshared.map_err(|errno| failed("unshare(CLONE_FS)", errno)),
        Err(_) => Err(failed("clone", Errno::AGAIN)),
    }
}

/// Runs a function on a thread, which may enter other namespaces, and returns its result.
pub(super) fn run<T: Send>(run: impl FnOnce() -> Result<T, Cause> + Send) -> Result<T, Cause> {
    thread::scope(|scope| {
        let running = thread::Builder::new().spawn_scoped(scope, || {
            unshare_fs().map_err(|errno| failed("unshare(CLONE_FS)", errno))?;
            run()
        });
        let running = running.map_err(|error| failed("clone", from_io_error(&error)))?;
        running.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn failed(call: &str, errno: Errno) -> Cause {
    Cause::Call {
        call: call.to_owned(),
        errno,
    }
}
