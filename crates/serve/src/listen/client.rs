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
use super::warnings::{PING_TIMEOUT, UNREAD_TIMEOUT, Warnings};

/// The time without data from a client after which the client is sent an HTTP/2 PING. A client that acknowledges the
/// PINGs can stay connected for any time: kubelet and CSI sidecars keep connections without calls.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);

/// If the daemon closes a connection after this time without data from the client, the reason was a PING without an
/// acknowledgement. The time is longer than `PING_INTERVAL`, within which every client that acknowledges sends
/// something, and shorter than `PING_INTERVAL + PING_TIMEOUT`, after which the HTTP/2 library closes the connection.
const UNACKNOWLEDGED_AFTER: Duration =
    Duration::from_secs(PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs() / 2);

/// The client that made a call. It is an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    pub(crate) connection: Connection,
}

/// A connection of a gRPC client, with its slot. Requests on it have the [`Caller`] as an extension.
///
/// If the slot is needed for another connection, reads report that the client has closed the connection, and writes
/// fail unless the socket accepts the data at once.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    peer: Peer,
    slot: ConnectionSlot,
    warnings: Arc<Warnings>,
    /// The time of the last read that returned data; before the first such read, the time of the connection.
    last_read: Instant,
    /// Whether a read has failed or has found the end of the connection.
    is_ended: bool,
    /// The timeout for the client to read. Runs while the socket's send buffer is full.
    unread_timeout: Option<Pin<Box<Sleep>>>,
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
            unread_timeout: None,
        }
    }

    /// Returns the result of a write, or an error if the write is pending and has to be given up.
    fn check_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.unread_timeout = None;
            return written;
        }
        if self.slot.poll_closed(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let timeout = self
            .unread_timeout
            .get_or_insert_with(|| Box::pin(sleep(UNREAD_TIMEOUT)));
        ready!(timeout.as_mut().poll(context));
        self.warnings.warn_unread(&self.peer);
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
            // A successful read that adds nothing to the buffer has found the end of the connection.
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
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The HTTP/2 library doesn't report why it closes a connection.
        if !self.is_ended && self.last_read.elapsed() >= UNACKNOWLEDGED_AFTER {
            self.warnings.warn_ping_timeout(&self.peer);
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
    async fn a_client_that_reads_nothing_is_disconnected_with_a_warning() {
        let (log, _guard) = captured();
        let (stream, _client) = UnixStream::pair().unwrap();
        let peer = Peer::from_stream(&stream).unwrap();
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
