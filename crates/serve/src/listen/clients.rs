//! Connections of gRPC clients: no number of silent or idle ones keeps another client out.

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
use super::slots::{ConnectionSlots, Room};
use super::warnings::Warnings;

/// The connection preface of an HTTP/2 client (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a client may take to send the preface. Every gRPC library does so as soon as it is connected.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections of a socket on which a client has begun HTTP/2, each with a slot of its own.
///
/// A connection without that has no slot yet. There are a limited number of them: one more closes the
/// one that has been silent for longest. Where root's client has begun and all slots are taken, the connection is
/// closed that has been without a call for longest: a gRPC client connects again for its next call.
#[derive(Debug)]
pub(crate) struct Clients {
    connections: Connections<UnixListener>,
    slots: Arc<ConnectionSlots>,
    silent: JoinSet<Begun>,
    /// Tasks of `silent` and their clients, those that were connected first at the front.
    order: VecDeque<(AbortHandle, Peer)>,
    /// A client that has begun, and waits for a slot.
    begun: Option<(UnixStream, Peer)>,
    warnings: Arc<Warnings>,
}

/// A connection, and how the wait for its preface has ended.
type Begun = (UnixStream, Peer, io::Result<()>);

impl Clients {
    pub(crate) fn new(connections: Connections<UnixListener>, slots: Arc<ConnectionSlots>) -> Self {
        let warnings = Arc::new(Warnings::new(connections.name()));
        Self {
            connections,
            slots,
            silent: JoinSet::new(),
            order: VecDeque::new(),
            begun: None,
            warnings,
        }
    }

    /// Takes the client at once where it has begun already, and otherwise waits for that in the background.
    fn accepted(&mut self, stream: UnixStream) {
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!("{}: SO_PEERCRED: {error}", self.connections.name());
                return;
            }
        };
        match peek(&stream) {
            Ok(()) => {
                self.begun = Some((stream, peer));
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        self.order.retain(|(task, _)| !task.is_finished());
        let most = self.slots.limits.silent;
        if self.order.len() >= most
            && let Some((oldest, its_peer)) = self.order.pop_front()
        {
            oldest.abort();
            let why = format!("no HTTP/2 preface yet, and the oldest of {most} without one");
            self.warnings.silent(&its_peer, &why);
        }
        let its_peer = peer.clone();
        let task = self.silent.spawn(async move {
            let begun = timeout(PREFACE_TIMEOUT, preface(&stream)).await;
            let begun = begun.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            (stream, peer, begun)
        });
        self.order.push_back((task, its_peer));
    }

    fn waited(&mut self, (stream, peer, begun): Begun) {
        match begun {
            Ok(()) => self.begun = Some((stream, peer)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let why = format!("no HTTP/2 preface within {} s", PREFACE_TIMEOUT.as_secs());
                self.warnings.silent(&peer, &why);
            }
            // It has hung up.
            Err(_) => {}
        }
    }

    /// Gives the client that has begun its slot; `None` if there is no such client or no slot for it. Is pending
    /// while another connection is closed for it.
    fn poll_placed(&mut self, context: &Context<'_>) -> Poll<Option<Client>> {
        let Some((stream, peer)) = self.begun.take() else {
            return Poll::Ready(None);
        };
        let full = match self.slots.take(&peer) {
            Ok(slot) => {
                let warnings = Arc::clone(&self.warnings);
                return Poll::Ready(Some(Client::new(stream, peer, slot, warnings)));
            }
            Err(full) => full,
        };
        match self.slots.make_room(&peer, context) {
            Room::None => {
                self.warnings.full(&peer, full);
                return Poll::Ready(None);
            }
            Room::Closing(idle) => self.warnings.full(&idle, full),
            Room::Awaited => {}
        }
        self.begun = Some((stream, peer));
        Poll::Pending
    }
}

/// Waits for the whole preface; fails with `UnexpectedEof` if the client closes the connection before.
///
/// `UnixStream::async_io` must not be used for this: tokio never clears the readiness of a closed connection
/// (`ScheduledIo::clear_readiness`). A closure that says `WouldBlock` there is called again for ever, within one poll,
/// so that no timeout ends it and the thread is lost.
async fn preface(stream: &UnixStream) -> io::Result<()> {
    loop {
        // Must come before the peek: if the client had closed the connection by now, the peek sees all that it has
        // sent.
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

/// Fails with `WouldBlock` if the preface is incomplete, and with `UnexpectedEof` at the end of the connection. The
/// bytes stay in the socket: the HTTP/2 library checks them.
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
            match this.poll_placed(context) {
                Poll::Ready(Some(client)) => return Poll::Ready(Some(Ok(client))),
                Poll::Ready(None) => {}
                Poll::Pending => return Poll::Pending,
            }
            if let Poll::Ready(Some(ended)) = this.silent.poll_join_next(context) {
                // An error is the oldest, which was aborted.
                if let Ok(waited) = ended {
                    this.waited(waited);
                }
                continue;
            }
            // One that was aborted has its descriptor until it is joined.
            if this.silent.len() > this.slots.limits.silent {
                return Poll::Pending;
            }
            match Pin::new(&mut this.connections).poll_next(context) {
                Poll::Ready(Some(Ok(stream))) => this.accepted(stream),
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

    /// The client ends the connection before the wait begins, or during it.
    #[tokio::test]
    async fn a_preface_is_complete_or_ends_with_the_connection() {
        for length in 0..=PREFACE.len() {
            for end in [End::Close, End::HalfClose] {
                for is_waited_for in [false, true] {
                    let case = format!("{length} bytes, {end:?}, during the wait: {is_waited_for}");
                    let (mut client, server) = UnixStream::pair().unwrap();
                    client.write_all(&PREFACE[..length]).await.unwrap();
                    let mut begun = Box::pin(preface(&server));
                    if is_waited_for && length < PREFACE.len() {
                        let looked = timeout(Duration::ZERO, &mut begun).await;
                        assert!(looked.is_err(), "{case}: {looked:?}");
                    }
                    // Kept by `HalfClose`.
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
                    let begun = begun.await.map_err(|error| error.kind());
                    let expected = if length == PREFACE.len() {
                        Ok(())
                    } else {
                        Err(io::ErrorKind::UnexpectedEof)
                    };
                    assert_eq!(begun, expected, "{case}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_preface_may_come_byte_by_byte() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut begun = Box::pin(preface(&server));
        for byte in PREFACE {
            let looked = timeout(Duration::ZERO, &mut begun).await;
            assert!(looked.is_err(), "{looked:?}");
            client.write_u8(*byte).await.unwrap();
        }
        begun.await.unwrap();
    }
}
