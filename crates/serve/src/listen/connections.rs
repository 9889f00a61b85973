//! Connections, as they come.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;

use super::reminder::Reminder;

/// After an `accept` that failed. Out of descriptors, the next one fails as soon as it is called.
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
    /// Of a service, which the log names.
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
