//! Warnings about connections that the daemon closes.

use std::time::Duration;

use super::connections::Reminder;
use super::peer::Peer;
use super::slots::Full;

/// How long a client may take to acknowledge a PING. HTTP/2 libraries do that without their program's help; it takes
/// a process that is not stopped, and a thread for the connection that does not wait for something else.
pub(crate) const ACKNOWLEDGEMENT: Duration = Duration::from_secs(20);

/// How long a client may leave what was sent to it unread once no more fits into the socket. Its
/// connection can't be closed in good order then either: a GOAWAY would not fit.
pub(super) const UNREAD: Duration = Duration::from_secs(30);

/// The warnings of a socket about the connections that it closes, at most one a minute for each reason.
#[derive(Debug)]
pub(super) struct Warnings {
    /// The name of the service.
    service: &'static str,
    silent: Reminder,
    full: Reminder,
    unread: Reminder,
    unanswered: Reminder,
}

impl Warnings {
    pub(super) fn new(service: &'static str) -> Self {
        Self {
            service,
            silent: Reminder::default(),
            full: Reminder::default(),
            unread: Reminder::default(),
            unanswered: Reminder::default(),
        }
    }

    /// Warns of a connection that was closed before its client had begun HTTP/2.
    pub(super) fn silent(&self, peer: &Peer, why: &str) {
        if self.silent.is_due() {
            tracing::warn!("{}: closed a connection of {peer}: {why}", self.service);
        }
    }

    /// Warns of a client whose connection was refused, or closed for another one.
    pub(super) fn full(&self, peer: &Peer, full: Full) {
        if self.full.is_due() {
            tracing::warn!(
                "{}: a connection of {peer} was closed, and had no call under way: {full}; hint: ss -xp shows whose they are",
                self.service
            );
        }
    }

    /// Warns of a client that does not read what it is sent.
    pub(super) fn unread(&self, peer: &Peer) {
        if self.unread.is_due() {
            tracing::warn!(
                "{}: a connection of {peer} was closed: its socket was full, and the client read nothing for {} s; hint: is the process stopped, or does it hang?",
                self.service,
                UNREAD.as_secs()
            );
        }
    }

    /// Warns of a client that does not acknowledge a PING.
    pub(super) fn unanswered(&self, peer: &Peer) {
        if self.unanswered.is_due() {
            tracing::warn!(
                "{}: a connection of {peer} was closed: the client did not answer an HTTP/2 ping for {} s; hint: is the process stopped, or does it hang?",
                self.service,
                ACKNOWLEDGEMENT.as_secs()
            );
        }
    }
}
