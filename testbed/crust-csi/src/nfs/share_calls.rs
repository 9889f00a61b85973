//! Calls on shares with a timeout. A call waits until the server answers, and only a fatal signal interrupts it. So each
//! call is made on a thread, which is left behind after the timeout.

use std::collections::HashSet;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crust_blockfs::errno::{self, Name};
use crust_nfs::Share;
use rustix::io::Errno;
use tracing::Span;

use crate::refusal::{NodeError, Refusal};

/// The outstanding calls of one kind. There is at most one call for each key, so the number of threads is bounded.
#[derive(Debug)]
pub(super) struct ShareCalls<K>(Arc<Mutex<HashSet<K>>>);

/// The reason why a call has no result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoResult {
    /// The call hasn't ended within its timeout. Its thread still runs.
    #[error("timeout")]
    TimedOut,
    /// An earlier call with the same key hasn't ended. This call wasn't made.
    #[error("an earlier call hasn't ended")]
    Outstanding,
    /// The thread can't be started.
    #[error("clone: {}", Name(*.0))]
    NoThread(Errno),
}

impl NodeError for NoResult {}

impl NoResult {
    /// Returns the error of a CSI call. `work` is the work on the share, such as "mounting".
    pub(super) fn into_refusal(
        self,
        id: &str,
        work: &'static str,
        share: &Share,
        timeout: Duration,
    ) -> Refusal {
        let (volume, share) = (id.to_owned(), share.to_string());
        match self {
            Self::TimedOut => Refusal::ShareTimeout {
                volume,
                work,
                share,
                seconds: timeout.as_secs(),
            },
            Self::Outstanding => Refusal::ShareBusy {
                volume,
                work,
                share,
            },
            Self::NoThread(_) => Refusal::node(id)(self),
        }
    }
}

impl<K> Default for ShareCalls<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> ShareCalls<K> {
    /// Makes a call on a thread and returns its result. Blocks until the call has ended or the timeout has passed.
    ///
    /// After the timeout, the caller never gets the result: the thread drops it when the call ends. Until then, no other
    /// call with the same key is made.
    pub(super) fn run<T: Send + 'static>(
        &self,
        key: K,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let outstanding = self.begin(key).ok_or(NoResult::Outstanding)?;
        // The channel has no buffer, so a result that isn't received is returned to the thread.
        let (sender, result) = sync_channel(0);
        let span = Span::current();
        let thread = thread::Builder::new().spawn(move || {
            let value = span.in_scope(call);
            // A result that isn't received is dropped here, before `outstanding`: closing the last descriptor of a mount
            // can wait for the server, too.
            let _ = sender.send((value, outstanding));
        });
        let thread = thread.map_err(|error| NoResult::NoThread(errno::from_io_error(&error)))?;
        match result.recv_timeout(timeout) {
            // The next call can begin as soon as this function has returned.
            Ok((value, _outstanding)) => Ok(value),
            Err(RecvTimeoutError::Timeout) => Err(NoResult::TimedOut),
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => Err(NoResult::TimedOut),
            },
        }
    }

    /// Adds a call; `None` if there is one with this key.
    fn begin(&self, key: K) -> Option<OutstandingCall<K>> {
        let calls = Arc::clone(&self.0);
        let is_first = lock(&calls).insert(key.clone());
        is_first.then(|| OutstandingCall { calls, key })
    }
}

/// A call that hasn't ended. Dropping it permits the next call with the same key.
struct OutstandingCall<K: Eq + Hash> {
    calls: Arc<Mutex<HashSet<K>>>,
    key: K,
}

impl<K: Eq + Hash> Drop for OutstandingCall<K> {
    fn drop(&mut self) {
        lock(&self.calls).remove(&self.key);
    }
}

fn lock<K>(calls: &Mutex<HashSet<K>>) -> MutexGuard<'_, HashSet<K>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use crust_blockfs::Deadline;

    use super::*;

    /// Longer than any call in these tests takes.
    const LONG: Duration = Duration::from_secs(60);

    /// A result whose drop sends a message, and then waits for one.
    struct SlowResult {
        dropping: Sender<thread::ThreadId>,
        finish: Receiver<()>,
    }

    impl Drop for SlowResult {
        fn drop(&mut self) {
            let _ = self.dropping.send(thread::current().id());
            let _ = self.finish.recv();
        }
    }

    fn wait_until_free(calls: &ShareCalls<&'static str>, key: &'static str) {
        let ended = Deadline::after(LONG).poll(|| match calls.run(key, LONG, || ()) {
            Err(NoResult::Outstanding) => Ok(None),
            other => other.map(Some),
        });
        assert_eq!(ended, Ok(Some(())));
    }

    #[test]
    fn calls_that_end_follow_each_other() {
        let calls = ShareCalls::default();
        for number in 0..100 {
            assert_eq!(calls.run("a", LONG, move || number), Ok(number));
        }
    }

    #[test]
    fn a_hung_call_is_left_behind_and_not_repeated() {
        let calls = ShareCalls::default();
        let (unblock, blocked) = channel::<()>();
        let hung = calls.run("a", Duration::ZERO, move || blocked.recv());
        assert_eq!(hung, Err(NoResult::TimedOut));
        for _ in 0..3 {
            let repeated = calls.run("a", LONG, || panic!("a second call"));
            assert_eq!(repeated, Err(NoResult::Outstanding));
        }
        assert_eq!(calls.run("b", LONG, || 7), Ok(7), "another key");
        drop(unblock);
        wait_until_free(&calls, "a");
    }

    #[test]
    fn a_late_result_is_dropped_before_the_next_call() {
        let calls = ShareCalls::default();
        let (unblock, blocked) = channel::<()>();
        let (dropping, dropped) = channel();
        let (finish, finished) = channel::<()>();
        let call = move || {
            let _ = blocked.recv();
            SlowResult {
                dropping,
                finish: finished,
            }
        };
        let late = calls.run("a", Duration::ZERO, call);
        assert_eq!(late.err(), Some(NoResult::TimedOut));
        drop(unblock);
        let dropped_by = dropped.recv().unwrap();
        assert_ne!(dropped_by, thread::current().id());
        assert_eq!(calls.run("a", LONG, || ()), Err(NoResult::Outstanding));
        drop(finish);
        wait_until_free(&calls, "a");
    }

    #[test]
    fn a_panic_is_the_callers() {
        let calls = ShareCalls::<&str>::default();
        let call = || -> () { panic!("of the call") };
        let caught = catch_unwind(AssertUnwindSafe(|| calls.run("a", LONG, call)));
        let panic = caught.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"of the call"));
        wait_until_free(&calls, "a");
    }
}
