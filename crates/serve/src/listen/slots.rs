//! Limits on the number of a daemon's connections, in all and for each user.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::process::{Resource, getrlimit};
use tokio::sync::oneshot;

use super::peer::Peer;

/// Limits on a daemon's connections, over all its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Connections in all. Root may have as many.
    all: usize,
    /// Connections of other users together: the rest is reserved for root.
    others: usize,
    /// Connections of one user other than root.
    each: usize,
    /// Connections on which the client has not begun HTTP/2 yet.
    pub(crate) silent: usize,
}

impl ConnectionLimits {
    /// Derives the limits from the configured number of connections and the process's limit of
    /// descriptors, of which connections get no more than half: calls and the programs that they run
    /// need the others.
    pub(crate) fn new(connections: usize, descriptors: Option<u64>) -> Self {
        let descriptors = descriptors.and_then(|most| usize::try_from(most).ok());
        let descriptors = descriptors.unwrap_or(usize::MAX);
        let all = connections.min(descriptors / 2).max(1);
        Self {
            all,
            others: (all / 4).max(1),
            each: (all / 16).max(1),
            silent: (descriptors / 8).clamp(1, 256),
        }
    }

    /// The same with this process's limit of descriptors.
    pub(crate) fn of_this_process(connections: usize) -> Self {
        Self::new(connections, getrlimit(Resource::Nofile).current)
    }
}

/// The limit that a connection would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("{0} connections are open, as many as there may be")]
    All(usize),
    #[error(
        "users other than root have {0} connections open, as many as they may have; the others are reserved for root"
    )]
    Others(usize),
    #[error("this user has {0} connections open, as many as a user other than root may have")]
    Each(usize),
}

/// The slots for connections, and the users that hold them.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    pub(crate) limits: ConnectionLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The open connections, by a number of their own.
    open: HashMap<u64, Open>,
    /// Connections of users other than root, by uid. No number is 0.
    others: HashMap<u32, usize>,
    /// Connections in `open` that were told to close.
    closing: usize,
    /// Counts what happens: connections that open, and calls that begin or end.
    clock: u64,
    /// Tasks that wait for a slot.
    waiting: Vec<Waker>,
}

/// The state of an open connection.
#[derive(Debug)]
struct Open {
    peer: Peer,
    /// Number of calls under way.
    calls: usize,
    /// The clock's time when it was opened, or when its latest call began or ended.
    last_used: u64,
    /// Tells it to close; `None` once that is done.
    close: Option<oneshot::Sender<()>>,
}

/// A connection's slot; it is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connection: Connection,
    closed: oneshot::Receiver<()>,
    is_closed: bool,
}

/// A connection to which calls are counted.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    slots: Arc<ConnectionSlots>,
    number: u64,
}

/// A call that is under way on a connection, which isn't closed for another as long as this exists.
#[derive(Debug)]
pub(crate) struct CallUnderWay(Connection);

/// An attempt to make room for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// This client's connection was told to close. The task is woken when its slot is free.
    Closing(Peer),
    /// Another connection is closing already. The task is woken when its slot is free.
    Awaited,
    /// No connection may be closed for this one.
    None,
}

impl ConnectionSlots {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            taken: Mutex::default(),
        }
    }

    /// Takes a slot for a client's connection.
    pub(crate) fn take(self: &Arc<Self>, peer: &Peer) -> Result<ConnectionSlot, Full> {
        let mut taken = self.taken();
        let (limits, uid) = (&self.limits, peer.uid);
        if uid != 0 {
            let own = taken.others.get(&uid).copied().unwrap_or_default();
            if own >= limits.each {
                return Err(Full::Each(own));
            }
            let others = taken.others.values().sum();
            if others >= limits.others {
                return Err(Full::Others(others));
            }
        }
        if taken.open.len() >= limits.all {
            return Err(Full::All(taken.open.len()));
        }
        if uid != 0 {
            *taken.others.entry(uid).or_default() += 1;
        }
        let (close, closed) = oneshot::channel();
        let number = taken.tick();
        let open = Open {
            peer: peer.clone(),
            calls: 0,
            last_used: number,
            close: Some(close),
        };
        taken.open.insert(number, open);
        Ok(ConnectionSlot {
            connection: Connection {
                slots: Arc::clone(self),
                number,
            },
            closed,
            is_closed: false,
        })
    }

    /// Makes room for a connection of root's where all slots are taken: the connection that has been without a call
    /// for longest is told to close. One with a call under way stays, and nobody else's connection closes root's.
    pub(crate) fn make_room(&self, peer: &Peer, context: &Context<'_>) -> Room {
        if peer.uid != 0 {
            return Room::None;
        }
        let mut taken = self.taken();
        let room = if taken.closing > 0 {
            Room::Awaited
        } else {
            let idle = taken.open.values_mut().filter(|open| open.calls == 0);
            let Some(idle) = idle.min_by_key(|open| open.last_used) else {
                return Room::None;
            };
            if let Some(close) = idle.close.take() {
                // Whoever would hear it is about to free the slot.
                let _ = close.send(());
            }
            let peer = idle.peer.clone();
            taken.closing += 1;
            Room::Closing(peer)
        };
        let waker = context.waker();
        if !taken.waiting.iter().any(|it| it.will_wake(waker)) {
            taken.waiting.push(waker.clone());
        }
        room
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics while it is held.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl ConnectionSlot {
    /// Returns the connection, for calls on it.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Is ready once the connection has to be closed, for another one.
    pub(crate) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_closed {
            // The sender isn't dropped before this is.
            self.is_closed = Pin::new(&mut self.closed).poll(context).is_ready();
        }
        if self.is_closed {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.connection.slots.taken();
        let Some(open) = taken.open.remove(&self.connection.number) else {
            return;
        };
        taken.closing -= usize::from(open.close.is_none());
        let uid = open.peer.uid;
        if let Some(own) = taken.others.get_mut(&uid) {
            *own -= 1;
            if *own == 0 {
                taken.others.remove(&uid);
            }
        }
        let waiting = std::mem::take(&mut taken.waiting);
        // A waker's drop may end a task, and with it another connection.
        drop(taken);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Connection {
    /// Counts a call until what is returned is dropped.
    pub(crate) fn call(&self) -> CallUnderWay {
        self.changed(|open| open.calls += 1);
        CallUnderWay(self.clone())
    }

    fn changed(&self, change: impl FnOnce(&mut Open)) {
        let mut taken = self.slots.taken();
        let now = taken.tick();
        if let Some(open) = taken.open.get_mut(&self.number) {
            open.last_used = now;
            change(open);
        }
    }
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.0.changed(|open| open.calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_half_of_the_descriptors_at_most() {
        let limits = |connections, descriptors| {
            let limits = ConnectionLimits::new(connections, descriptors);
            (limits.all, limits.others, limits.each, limits.silent)
        };
        assert_eq!(limits(512, None), (512, 128, 32, 256));
        assert_eq!(limits(512, Some(1_048_576)), (512, 128, 32, 256));
        assert_eq!(limits(512, Some(256)), (128, 32, 8, 32));
        assert_eq!(limits(512, Some(3)), (1, 1, 1, 1));
        assert_eq!(limits(1, None), (1, 1, 1, 256));
    }

    fn peer(uid: u32) -> Peer {
        Peer {
            uid,
            pid: None,
            command: None,
        }
    }

    #[test]
    fn nobody_keeps_root_out_and_no_user_another() {
        let slots = Arc::new(ConnectionSlots::new(ConnectionLimits::new(32, None)));
        let take = |uid| slots.take(&peer(uid));
        let mut taken: Vec<ConnectionSlot> = (0..2).map(|_| take(1).unwrap()).collect();
        assert_eq!(take(1).unwrap_err(), Full::Each(2));
        for uid in 2..=4 {
            taken.extend((0..2).map(|_| take(uid).unwrap()));
        }
        assert_eq!(take(5).unwrap_err(), Full::Others(8));
        let roots: Vec<ConnectionSlot> = (0..24).map(|_| take(0).unwrap()).collect();
        assert_eq!(take(0).unwrap_err(), Full::All(32));
        taken.pop();
        assert!(take(5).is_ok(), "a place that is free again");
        drop((taken, roots));
        assert!(slots.taken().open.is_empty());
        assert!(slots.taken().others.is_empty());
    }

    #[test]
    fn the_longest_idle_connection_is_closed_for_roots() {
        let slots = Arc::new(ConnectionSlots::new(ConnectionLimits::new(3, None)));
        let context = &mut Context::from_waker(Waker::noop());
        let mut open: Vec<ConnectionSlot> = (0..3).map(|_| slots.take(&peer(0)).unwrap()).collect();
        assert_eq!(slots.make_room(&peer(1), context), Room::None);
        // The first has a call under way, the second has had one.
        let call = open[0].connection().call();
        drop(open[1].connection().call());
        assert_eq!(slots.make_room(&peer(0), context), Room::Closing(peer(0)));
        assert_eq!(slots.make_room(&peer(0), context), Room::Awaited);
        let closed = |slot: &mut ConnectionSlot, context: &mut Context<'_>| {
            slot.poll_closed(context).is_ready()
        };
        let are_closed: Vec<bool> = open.iter_mut().map(|it| closed(it, context)).collect();
        assert_eq!(are_closed, [false, false, true]);
        assert!(slots.take(&peer(0)).is_err(), "it isn't closed yet");
        drop(open.pop());
        open.push(slots.take(&peer(0)).unwrap());
        let _calls: Vec<CallUnderWay> = open.iter().map(|it| it.connection().call()).collect();
        assert_eq!(slots.make_room(&peer(0), context), Room::None);
        drop(call);
        assert_eq!(slots.make_room(&peer(0), context), Room::None);
    }
}
