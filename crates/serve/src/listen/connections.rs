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

/// The pause after an `accept` that failed. Without descriptors the next one would fail at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A source of connections.
pub trait Accept: Unpin {
    /// A connection.
    type Io;

    /// Takes the next one.
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Self::Io>>;
}

impl Accept for UnixListener {
    type Io = UnixStream;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        let accepted = ready!(UnixListener::poll_accept(self, context));
        Poll::Ready(accepted.map(|(stream, _)| stream))
    }
}

/// A listener's connections, as a stream without end. It pauses after an `accept` that fails.
#[derive(Debug)]
pub struct Connections<L> {
    listener: L,
    /// The name of the service, for the log.
    of: &'static str,
    pause: Option<Pin<Box<Sleep>>>,
    told: Reminder,
}

impl<L> Connections<L> {
    /// Returns the connections of a listener. The log names the service.
    pub fn new(of: &'static str, listener: L) -> Self {
        Self {
            listener,
            of,
            pause: None,
            told: Reminder::default(),
        }
    }

    /// A descriptor of the socket, of its own.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd>
    where
        L: AsFd,
    {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Returns the name of the service, for the log.
    pub(super) fn name(&self) -> &'static str {
        self.of
    }

    fn tell(&self, error: &io::Error) {
        if !self.told.is_due() {
            return;
        }
        let out = [Errno::MFILE, Errno::NFILE];
        let hint = match Errno::from_io_error(error) {
            Some(errno) if out.contains(&errno) => "; hint: LimitNOFILE= of its unit, ulimit -n",
            _ => "",
        };
        tracing::error!("{}: accept: {error}; clients wait{hint}", self.of);
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
                    this.tell(&error);
                    this.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Limits a log line to one a minute.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    told: Mutex<Option<Instant>>,
}

impl Reminder {
    /// Returns whether the line is due. It counts as written then.
    pub(super) fn is_due(&self) -> bool {
        // Nothing panics while it is held.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.is_none_or(|told| told.elapsed() >= INTERVAL);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }
}
