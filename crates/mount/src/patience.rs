//! A look at something that may hang has an end: a thread has it, and is waited for only so long.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::sys;

/// What is seen within the time; `None` where there is no answer by then. The thread is left behind, with
/// a directory, root and umask of its own: with those in common this one could enter no mount namespace
/// any more (setns(2)).
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (ready, is_ready) = channel();
    let (tell, told) = channel();
    // One that can't be started, or be on its own, tells nothing.
    let thread = thread::Builder::new().spawn(move || {
        let own = sys::unshare_fs();
        let _ = ready.send(());
        if own.is_ok() {
            let _ = tell.send(look());
        }
    });
    let _ = is_ready.recv();
    let seen = told.recv_timeout(limit).ok();
    if let (Ok(thread), true) = (thread, seen.is_some()) {
        // It has nothing left to do.
        let _ = thread.join();
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_left_behind() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let endless = || {
            loop {
                thread::park();
            }
        };
        assert_eq!(within(Duration::from_millis(10), endless), None::<()>);
    }
}
