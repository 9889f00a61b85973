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
    /// The limit for all connections together. Root can have all of them.
    total: usize,
    /// The connections of all users other than root together. The rest is reserved for root.
    non_root: usize,
    /// The connections of one user other than root.
    per_user: usize,
    /// Connections on which the client has not sent the HTTP/2 preface yet. They have no slot.
    pub(crate) silent: usize,
}

impl ConnectionLimits {
    /// Derives the limits from the configured number of connections and the limit on the process's descriptors (`None`
    /// is unlimited). Connections get at most half of the descriptors, because calls and the programs that they run
    /// need descriptors, too.
    pub(crate) fn new(connections: usize, descriptors: Option<u64>) -> Self {
        let descriptors = descriptors.and_then(|limit| usize::try_from(limit).ok());
        let descriptors = descriptors.unwrap_or(usize::MAX);
        let total = connections.min(descriptors / 2).max(1);
        Self {
            total,
            non_root: (total / 4).max(1),
            per_user: (total / 16).max(1),
            silent: (descriptors / 8).clamp(1, 256),
        }
    }

    /// Derives the limits with this process's limit on descriptors (`RLIMIT_NOFILE`).
    pub(crate) fn with_process_limit(connections: usize) -> Self {
        Self::new(connections, getrlimit(Resource::Nofile).current)
    }
}

/// The limit that a connection would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitReached {
    #[error("{0} connections are open, which is the limit")]
    Total(usize),
    #[error(
        "users other than root have {0} connections open, which is their limit; the rest is reserved for root"
    )]
    NonRoot(usize),
    #[error("this user has {0} connections open, which is the limit for a user other than root")]
    PerUser(usize),
}

/// The slots for connections. They limit the number of connections in total and for each user.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    pub(crate) limits: ConnectionLimits,
    state: Mutex<SlotsState>,
}

#[derive(Debug, Default)]
struct SlotsState {
    /// The open connections, by [`Connection::number`].
    open: HashMap<u64, OpenConnection>,
    /// The number of connections of each user other than root, by uid. Users without connections have no entry.
    non_root: HashMap<u32, usize>,
    /// The number of connections in `open` that have been asked to close.
    closing: usize,
    /// A logical clock: it is increased when a connection is opened, and when a call begins or ends.
    clock: u64,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
struct OpenConnection {
    peer: Peer,
    /// The number of calls in progress.
    calls: usize,
    /// The value of the clock when the connection was opened, or when its latest call began or ended.
    last_used: u64,
    /// Asks the connection to close. `None` once that was done.
    close: Option<oneshot::Sender<()>>,
}

/// The slot of a connection. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connection: Connection,
    closed: oneshot::Receiver<()>,
    is_closed: bool,
}

/// A connection, to count the calls in progress on it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    slots: Arc<ConnectionSlots>,
    number: u64,
}

/// A call in progress on a connection. As long as it exists, the connection isn't closed to make room for another one.
#[derive(Debug)]
pub(crate) struct ConnectionCall(Connection);

/// The result of [`ConnectionSlots::evict`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The connection of this client was asked to close. The waiting task is woken when the connection's slot is free.
    Started(Peer),
    /// A connection is closing already. The waiting task is woken when the slot of that connection is free.
    InProgress,
    /// No connection may be closed for this client.
    Impossible,
}

impl ConnectionSlots {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    /// Takes a slot for a client's connection.
    pub(crate) fn take(self: &Arc<Self>, peer: &Peer) -> Result<ConnectionSlot, LimitReached> {
        let mut state = self.lock();
        let (limits, uid) = (&self.limits, peer.uid);
        if uid != 0 {
            let of_user = state.non_root.get(&uid).copied().unwrap_or_default();
            if of_user >= limits.per_user {
                return Err(LimitReached::PerUser(of_user));
            }
            let non_root = state.non_root.values().sum();
            if non_root >= limits.non_root {
                return Err(LimitReached::NonRoot(non_root));
            }
        }
        if state.open.len() >= limits.total {
            return Err(LimitReached::Total(state.open.len()));
        }
        if uid != 0 {
            *state.non_root.entry(uid).or_default() += 1;
        }
        let (close, closed) = oneshot::channel();
        let number = state.tick();
        let open = OpenConnection {
            peer: peer.clone(),
            calls: 0,
            last_used: number,
            close: Some(close),
        };
        state.open.insert(number, open);
        Ok(ConnectionSlot {
            connection: Connection {
                slots: Arc::clone(self),
                number,
            },
            closed,
            is_closed: false,
        })
    }

    /// Asks the connection that has been without a call for longest to close, if `peer` is root. A connection with a
    /// call in progress is never closed, and no connection is closed for a user other than root.
    pub(crate) fn evict(&self, peer: &Peer, context: &Context<'_>) -> Eviction {
        if peer.uid != 0 {
            return Eviction::Impossible;
        }
        let mut state = self.lock();
        let eviction = if state.closing > 0 {
            Eviction::InProgress
        } else {
            let idle = state.open.values_mut().filter(|open| open.calls == 0);
            let Some(idle) = idle.min_by_key(|open| open.last_used) else {
                return Eviction::Impossible;
            };
            if let Some(close) = idle.close.take() {
                // Fails if the slot is being dropped and so about to be free.
                let _ = close.send(());
            }
            let peer = idle.peer.clone();
            state.closing += 1;
            Eviction::Started(peer)
        };
        let waker = context.waker();
        if !state.waiting.iter().any(|it| it.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        eviction
    }

    fn lock(&self) -> MutexGuard<'_, SlotsState> {
        // Nothing panics while the lock is held, so it is never poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotsState {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl ConnectionSlot {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Is ready once the connection has to be closed to make room for another one.
    pub(crate) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_closed {
            // The sender is not dropped before the slot, so only `evict` makes this ready.
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
        let mut state = self.connection.slots.lock();
        let Some(open) = state.open.remove(&self.connection.number) else {
            return;
        };
        state.closing -= usize::from(open.close.is_none());
        let uid = open.peer.uid;
        if let Some(of_user) = state.non_root.get_mut(&uid) {
            *of_user -= 1;
            if *of_user == 0 {
                state.non_root.remove(&uid);
            }
        }
        let waiting = std::mem::take(&mut state.waiting);
        // The state must be unlocked before the wakers are dropped. Dropping a waker can end a task, and so drop the
        // slot of another connection.
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Connection {
    /// Counts a call as in progress until the returned value is dropped.
    pub(crate) fn begin_call(&self) -> ConnectionCall {
        self.update(|open| open.calls += 1);
        ConnectionCall(self.clone())
    }

    fn update(&self, update: impl FnOnce(&mut OpenConnection)) {
        let mut state = self.slots.lock();
        let now = state.tick();
        if let Some(open) = state.open.get_mut(&self.number) {
            open.last_used = now;
            update(open);
        }
    }
}

impl Drop for ConnectionCall {
    fn drop(&mut self) {
        self.0.update(|open| open.calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_half_of_the_descriptors_at_most() {
        let limits = |connections, descriptors| {
            let limits = ConnectionLimits::new(connections, descriptors);
            (
                limits.total,
                limits.non_root,
                limits.per_user,
                limits.silent,
            )
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
    fn users_cannot_take_the_slots_of_root_or_of_each_other() {
        let slots = Arc::new(ConnectionSlots::new(ConnectionLimits::new(32, None)));
        let take = |uid| slots.take(&peer(uid));
        let mut taken: Vec<ConnectionSlot> = (0..2).map(|_| take(1).unwrap()).collect();
        assert_eq!(take(1).unwrap_err(), LimitReached::PerUser(2));
        for uid in 2..=4 {
            taken.extend((0..2).map(|_| take(uid).unwrap()));
        }
        assert_eq!(take(5).unwrap_err(), LimitReached::NonRoot(8));
        let roots: Vec<ConnectionSlot> = (0..24).map(|_| take(0).unwrap()).collect();
        assert_eq!(take(0).unwrap_err(), LimitReached::Total(32));
        taken.pop();
        assert!(take(5).is_ok(), "a slot was freed");
        drop((taken, roots));
        assert!(slots.lock().open.is_empty());
        assert!(slots.lock().non_root.is_empty());
    }

    #[test]
    fn the_longest_idle_connection_is_closed_for_root() {
        let slots = Arc::new(ConnectionSlots::new(ConnectionLimits::new(3, None)));
        let context = &mut Context::from_waker(Waker::noop());
        let mut open: Vec<ConnectionSlot> = (0..3).map(|_| slots.take(&peer(0)).unwrap()).collect();
        assert_eq!(slots.evict(&peer(1), context), Eviction::Impossible);
        // The first connection has a call in progress. The second one has had a call.
        let call = open[0].connection().begin_call();
        drop(open[1].connection().begin_call());
        assert_eq!(slots.evict(&peer(0), context), Eviction::Started(peer(0)));
        assert_eq!(slots.evict(&peer(0), context), Eviction::InProgress);
        let closed = |slot: &mut ConnectionSlot, context: &mut Context<'_>| {
            slot.poll_closed(context).is_ready()
        };
        let are_closed: Vec<bool> = open.iter_mut().map(|it| closed(it, context)).collect();
        assert_eq!(are_closed, [false, false, true]);
        assert!(
            slots.take(&peer(0)).is_err(),
            "the connection isn't closed yet"
        );
        drop(open.pop());
        open.push(slots.take(&peer(0)).unwrap());
        let _calls: Vec<ConnectionCall> =
            open.iter().map(|it| it.connection().begin_call()).collect();
        assert_eq!(slots.evict(&peer(0), context), Eviction::Impossible);
        drop(call);
        assert_eq!(slots.evict(&peer(0), context), Eviction::Impossible);
    }
}
