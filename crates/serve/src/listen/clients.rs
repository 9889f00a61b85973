//! Connections of gRPC clients. Silent and idle connections, however many, don't keep other clients out.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_stream::Stream;

use super::Connections;
use super::client::Client;
use super::peer::Peer;
use super::slots::{ConnectionSlots, Eviction};
use super::warnings::Warnings;

/// The connection preface of an HTTP/2 client (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The longest time that a client may take to send the preface. gRPC libraries send it as soon as they are connected.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream of a socket's connections on which the client has sent the HTTP/2 preface. Each of them has a slot.
///
/// A connection without the preface is silent and has no slot. The number of silent connections is limited: one
/// more closes the oldest. If a client that runs as root has sent the preface and all slots are taken, the connection
/// that has been without a call for longest is closed. Its gRPC client connects again for its next call.
#[derive(Debug)]
pub(crate) struct Clients {
    connections: Connections<UnixListener>,
    slots: Arc<ConnectionSlots>,
    /// Tasks that wait for the preface of a silent connection.
    silent: JoinSet<PrefaceResult>,
    /// The tasks in `silent`, each with its client. The oldest task is first.
    silent_by_age: VecDeque<(AbortHandle, Peer)>,
    /// A client that has sent the preface and waits for a slot.
    ready: Option<(UnixStream, Peer)>,
    warnings: Arc<Warnings>,
}

/// A connection, and the result of waiting for its preface.
type PrefaceResult = (UnixStream, Peer, io::Result<()>);

impl Clients {
    pub(crate) fn new(connections: Connections<UnixListener>, slots: Arc<ConnectionSlots>) -> Self {
        let warnings = Arc::new(Warnings::new(connections.name()));
        Self {
            connections,
            slots,
            silent: JoinSet::new(),
            silent_by_age: VecDeque::new(),
            ready: None,
            warnings,
        }
    }

    /// Handles a new connection. If the preface isn't there yet, a task waits for it.
    fn handle_accepted(&mut self, stream: UnixStream) {
        let peer = match Peer::from_stream(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(
                    "{}: closed a connection whose client is unknown: SO_PEERCRED: {error}",
                    self.connections.name()
                );
                return;
            }
        };
        match peek(&stream) {
            Ok(()) => {
                self.ready = Some((stream, peer));
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        self.silent_by_age.retain(|(task, _)| !task.is_finished());
        let limit = self.slots.limits.silent;
        if self.silent_by_age.len() >= limit
            && let Some((oldest, oldest_peer)) = self.silent_by_age.pop_front()
        {
            oldest.abort();
            let reason = format!(
                "it was the oldest of {limit} connections without an HTTP/2 preface, which is the limit"
            );
            self.warnings.warn_silent(&oldest_peer, &reason);
        }
        let task_peer = peer.clone();
        let task = self.silent.spawn(async move {
            let result = timeout(PREFACE_TIMEOUT, wait_for_preface(&stream)).await;
            let result = result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            (stream, task_peer, result)
        });
        self.silent_by_age.push_back((task, peer));
    }

    fn handle_preface(&mut self, (stream, peer, result): PrefaceResult) {
        match result {
            Ok(()) => self.ready = Some((stream, peer)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let seconds = PREFACE_TIMEOUT.as_secs();
                let reason = format!("it sent no HTTP/2 preface within {seconds} s");
                self.warnings.warn_silent(&peer, &reason);
            }
            // The client has closed the connection.
            Err(_) => {}
        }
    }

    /// Takes a slot for the client that has sent the preface. Returns `None` if there is no such client or if it gets
    /// no slot. Is pending while another connection is being closed for it.
    fn poll_slot(&mut self, context: &Context<'_>) -> Poll<Option<Client>> {
        let Some((stream, peer)) = self.ready.take() else {
            return Poll::Ready(None);
        };
        let full = match self.slots.take(&peer) {
            Ok(slot) => {
                let warnings = Arc::clone(&self.warnings);
                return Poll::Ready(Some(Client::new(stream, peer, slot, warnings)));
            }
            Err(full) => full,
        };
        match self.slots.evict(&peer, context) {
            Eviction::Impossible => {
                self.warnings.warn_full(&peer, full);
                return Poll::Ready(None);
            }
            Eviction::Started(idle) => self.warnings.warn_full(&idle, full),
            Eviction::InProgress => {}
        }
        self.ready = Some((stream, peer));
        Poll::Pending
    }
}

/// Waits for the whole preface. Fails with `UnexpectedEof` if the client closes the connection before.
///
/// `UnixStream::async_io` must not be used for this: tokio never clears the readiness of a closed connection
/// (`ScheduledIo::clear_readiness`). If the closure returns `WouldBlock` there, it is called again and again within one
/// poll. No timeout ends that, and the thread is lost.
async fn wait_for_preface(stream: &UnixStream) -> io::Result<()> {
    loop {
        // This must come before the peek: if the client has closed the connection by now, the peek sees everything that
        // it has sent.
        let ready = stream.ready(Interest::READABLE).await?;
        match stream.try_io(Interest::READABLE, || peek(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            peeked => return peeked,
        }
        if ready.is_read_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Checks that the whole preface has arrived. Fails with `WouldBlock` if it is incomplete, and with `UnexpectedEof` at
/// the end of the connection. The bytes stay in the socket, and the HTTP/2 library checks them.
fn peek(stream: &UnixStream) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(stream, &mut bytes, flags) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((length, _)) if length < PREFACE.len() => Err(Errno::WOULDBLOCK.into()),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Stream for Clients {
    type Item = io::Result<Client>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match this.poll_slot(context) {
                Poll::Ready(Some(client)) => return Poll::Ready(Some(Ok(client))),
                Poll::Ready(None) => {}
                Poll::Pending => return Poll::Pending,
            }
            if let Poll::Ready(Some(ended)) = this.silent.poll_join_next(context) {
                // A task fails to join if it was aborted as the oldest one.
                if let Ok(result) = ended {
                    this.handle_preface(result);
                }
                continue;
            }
            // An aborted task holds its descriptor until it is joined.
            if this.silent.len() > this.slots.limits.silent {
                return Poll::Pending;
            }
            match Pin::new(&mut this.connections).poll_next(context) {
                Poll::Ready(Some(Ok(stream))) => this.handle_accepted(stream),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum End {
        Close,
        HalfClose,
    }

    /// The client closes the connection before or during the wait.
    #[tokio::test]
    async fn the_wait_for_a_preface_ends_with_the_connection() {
        for length in 0..=PREFACE.len() {
            for end in [End::Close, End::HalfClose] {
                for is_during_wait in [false, true] {
                    let case =
                        format!("{length} bytes, {end:?}, during the wait: {is_during_wait}");
                    let (mut client, server) = UnixStream::pair().unwrap();
                    client.write_all(&PREFACE[..length]).await.unwrap();
                    let mut wait = Box::pin(wait_for_preface(&server));
                    if is_during_wait && length < PREFACE.len() {
                        let result = timeout(Duration::ZERO, &mut wait).await;
                        assert!(result.is_err(), "{case}: {result:?}");
                    }
                    // After a half-close the client's descriptor has to stay open.
                    let _client = match end {
                        End::Close => {
                            drop(client);
                            None
                        }
                        End::HalfClose => {
                            client.shutdown().await.unwrap();
                            Some(client)
                        }
                    };
                    let result = wait.await.map_err(|error| error.kind());
                    let expected = if length == PREFACE.len() {
                        Ok(())
                    } else {
                        Err(io::ErrorKind::UnexpectedEof)
                    };
                    assert_eq!(result, expected, "{case}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_preface_may_come_byte_by_byte() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut wait = Box::pin(wait_for_preface(&server));
        for byte in PREFACE {
            let result = timeout(Duration::ZERO, &mut wait).await;
            assert!(result.is_err(), "{result:?}");
            client.write_u8(*byte).await.unwrap();
        }
        wait.await.unwrap();
    }
}
