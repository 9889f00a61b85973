//! The connections of a listener, as a stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;

/// The pause after a failed accept(2). If the process has no descriptor left, the next accept(2) would fail at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket of any address family.
pub trait Accept: Unpin {
    /// The type of a connection.
    type Io;

    /// Polls for the next connection.
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Self::Io>>;
}

impl Accept for UnixListener {
    type Io = UnixStream;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        let accepted = ready!(UnixListener::poll_accept(self, context));
        Poll::Ready(accepted.map(|(stream, _)| stream))
    }
}

/// The connections of a listener, as an endless stream. If accept(2) fails, the stream logs that, pauses and retries.
#[derive(Debug)]
pub struct Connections<L> {
    listener: L,
    name: &'static str,
    pause: Option<Pin<Box<Sleep>>>,
    accept_errors: RateLimit,
}

impl<L> Connections<L> {
    /// Returns the connections of a listener. `name` is the name of the service in the log.
    pub fn new(name: &'static str, listener: L) -> Self {
        Self {
            listener,
            name,
            pause: None,
            accept_errors: RateLimit::default(),
        }
    }

    /// Returns a duplicate of the listening socket's descriptor.
    pub(crate) fn duplicate_socket(&self) -> io::Result<OwnedFd>
    where
        L: AsFd,
    {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Returns the name of the service, for the log.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    fn log_accept_error(&self, error: &io::Error) {
        if !self.accept_errors.allow() {
            return;
        }
        let hint = match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => {
                "; hint: raise LimitNOFILE= of the systemd unit, or ulimit -n"
            }
            _ => "",
        };
        tracing::error!(
            "{}: accept: {error}; new clients have to wait{hint}",
            self.name
        );
    }
}

impl<L: Accept> Stream for Connections<L> {
    type Item = io::Result<L::Io>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            match ready!(this.listener.poll_accept(context)) {
                Ok(stream) => return Poll::Ready(Some(Ok(stream))),
                Err(error) => {
                    this.log_accept_error(&error);
                    this.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

/// The minimum time between two lines of the same kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Limits log lines of one kind to one per minute.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    last: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// Returns whether a line may be logged now. If so, the next line has to wait.
    pub(super) fn allow(&self) -> bool {
        // Nothing panics while the lock is held, so it is never poisoned.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_allowed = last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if is_allowed {
            *last = Some(Instant::now());
        }
        is_allowed
    }
}
