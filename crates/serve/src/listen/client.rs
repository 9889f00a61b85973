//! A connection of a gRPC client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use super::peer::Peer;
use super::places::{Connection, Place};

/// How long a client may leave what was sent to it unread once no more fits into the socket. Its
/// connection can't be closed in good order then either: a GOAWAY would not fit.
const UNREAD: Duration = Duration::from_secs(30);

/// The client of a call, among the extensions of its request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    pub(crate) connection: Connection,
}

/// A connection of a gRPC client, with its place. Calls on it find the [`Caller`] among their extensions.
///
/// Once its place is needed for another, it reads as if the client had closed it, and writes no more than the socket
/// takes at once.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    peer: Peer,
    place: Place,
    /// Runs while the socket is full.
    full: Option<Pin<Box<Sleep>>>,
}

impl Client {
    pub(super) fn new(stream: UnixStream, peer: Peer, place: Place) -> Self {
        Self {
            stream,
            peer,
            place,
            full: None,
        }
    }

    fn wrote<T>(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.full = None;
            return wrote;
        }
        if self.place.poll_closed(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let full = self.full.get_or_insert_with(|| Box::pin(sleep(UNREAD)));
        ready!(full.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Connected for Client {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller {
            peer: self.peer.clone(),
            connection: self.place.connection().clone(),
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.place.poll_closed(context).is_ready() {
            // The end of what there is to read.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt as _;

    use super::super::places::{Caps, Places};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (stream, _deaf) = UnixStream::pair().unwrap();
        let peer = Peer::of(&stream).unwrap();
        let places = Arc::new(Places::new(Caps::new(1, None)));
        let place = places.take(&peer).unwrap();
        let mut client = Client::new(stream, peer, place);
        let error = client.write_all(&vec![0; 16 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
