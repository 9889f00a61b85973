//! Warnings about connections that the daemon closes.

use std::time::Duration;

use super::connections::RateLimit;
use super::peer::Peer;
use super::slots::LimitReached;

/// The longest time that a client may take to acknowledge an HTTP/2 PING. Libraries acknowledge it without help from
/// their program, unless the process is stopped or the thread of the connection is blocked.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest time that a client may leave data unread while the send buffer of the socket is full. The connection is
/// then closed without a GOAWAY, which would not fit into the buffer either.
pub(super) const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The warnings about connections of one socket that the daemon closes, at most one per minute for each reason.
#[derive(Debug)]
pub(super) struct Warnings {
    service: &'static str,
    silent: RateLimit,
    full: RateLimit,
    unread: RateLimit,
    ping_timeout: RateLimit,
}

impl Warnings {
    pub(super) fn new(service: &'static str) -> Self {
        Self {
            service,
            silent: RateLimit::default(),
            full: RateLimit::default(),
            unread: RateLimit::default(),
            ping_timeout: RateLimit::default(),
        }
    }

    /// Warns about a connection that was closed before its client had sent the HTTP/2 preface.
    pub(super) fn warn_silent(&self, peer: &Peer, reason: &str) {
        if self.silent.allow() {
            tracing::warn!("{}: closed a connection of {peer}: {reason}", self.service);
        }
    }

    /// Warns about a connection that was refused, or closed to make room for another one.
    pub(super) fn warn_full(&self, peer: &Peer, limit: LimitReached) {
        if self.full.allow() {
            tracing::warn!(
                "{}: closed a connection of {peer} that had no call in progress: {limit}; hint: list the processes with connections with `ss -xp`",
                self.service
            );
        }
    }

    /// Warns about a client that doesn't read what it is sent.
    pub(super) fn warn_unread(&self, peer: &Peer) {
        if self.unread.allow() {
            tracing::warn!(
                "{}: closed a connection of {peer}: the client read nothing for {} s while the socket was full; hint: check whether the process is stopped or hangs",
                self.service,
                UNREAD_TIMEOUT.as_secs()
            );
        }
    }

    /// Warns about a client that doesn't acknowledge a PING.
    pub(super) fn warn_ping_timeout(&self, peer: &Peer) {
        if self.ping_timeout.allow() {
            tracing::warn!(
                "{}: closed a connection of {peer}: the client did not acknowledge an HTTP/2 ping within {} s; hint: check whether the process is stopped or hangs",
                self.service,
                PING_TIMEOUT.as_secs()
            );
        }
    }
}
