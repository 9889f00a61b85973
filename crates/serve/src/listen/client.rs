//! A connection of a gRPC client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

use super::peer::Peer;
use super::slots::{Connection, ConnectionSlot};
use super::warnings::{ACKNOWLEDGEMENT, UNREAD, Warnings};

/// How long a connection may be quiet before its client is sent a PING. A client that acknowledges it may be idle for
/// as long as it wants: kubelet and CSI sidecars keep connections without calls.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The silence after which a connection that the daemon closes counts as closed for a PING without an answer: longer
/// than `KEEP_ALIVE`, within which every client that answers sends something, and shorter than the silence at which
/// the others are closed, which is `ACKNOWLEDGEMENT` more.
const UNANSWERED: Duration =
    Duration::from_secs(KEEP_ALIVE.as_secs() + ACKNOWLEDGEMENT.as_secs() / 2);

/// The client of a call, among the extensions of its request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    pub(crate) connection: Connection,
}

/// A connection of a gRPC client, with its slot. Calls on it find the [`Caller`] among their extensions.
///
/// Once its slot is needed for another, it reads as if the client had closed it, and writes no more than the socket
/// takes at once.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    peer: Peer,
    slot: ConnectionSlot,
    warnings: Arc<Warnings>,
    /// The time at which the client's latest bytes were read, or the connection began.
    last_read: Instant,
    /// Whether a read has failed or found the end of the connection.
    is_ended: bool,
    /// Runs while the socket is full.
    full: Option<Pin<Box<Sleep>>>,
}

impl Client {
    pub(super) fn new(
        stream: UnixStream,
        peer: Peer,
        slot: ConnectionSlot,
        warnings: Arc<Warnings>,
    ) -> Self {
        Self {
            stream,
            peer,
            slot,
            warnings,
            last_read: Instant::now(),
            is_ended: false,
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
        if self.slot.poll_closed(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let full = self.full.get_or_insert_with(|| Box::pin(sleep(UNREAD)));
        ready!(full.as_mut().poll(context));
        self.warnings.unread(&self.peer);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Connected for Client {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller {
            peer: self.peer.clone(),
            connection: self.slot.connection().clone(),
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.slot.poll_closed(context).is_ready() {
            // The end of what there is to read.
            self.is_ended = true;
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if read.is_ok() && buffer.filled().len() > before {
            self.last_read = Instant::now();
        } else {
            self.is_ended = true;
        }
        Poll::Ready(read)
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
        // The HTTP/2 library doesn't say why it closes a connection.
        if !self.is_ended && self.last_read.elapsed() >= UNANSWERED {
            self.warnings.unanswered(&self.peer);
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::super::slots::{ConnectionLimits, ConnectionSlots};
    use super::*;
    use crate::log::tests::captured;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up_with_a_warning() {
        let (log, _guard) = captured();
        let (stream, _deaf) = UnixStream::pair().unwrap();
        let peer = Peer::of(&stream).unwrap();
        let slots = Arc::new(ConnectionSlots::new(ConnectionLimits::new(1, None)));
        let slot = slots.take(&peer).unwrap();
        let mut client = Client::new(stream, peer, slot, Arc::new(Warnings::new("ours")));
        let peer = client.peer.to_string();
        let error = client.write_all(&vec![0; 16 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let log = log.text();
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(&peer) && log.contains("read nothing"), "{log}");
    }
}
