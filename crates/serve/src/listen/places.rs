//! Limits on the number of a daemon's connections, in all and for each user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};

/// Limits on a daemon's connections, over all its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caps {
    /// Connections in all. Root may have as many.
    all: usize,
    /// Connections of other users together: the rest is reserved for root.
    others: usize,
    /// Connections of one user other than root.
    each: usize,
    /// Connections on which the client has not begun HTTP/2 yet.
    pub(crate) silent: usize,
}

impl Caps {
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

/// The places for connections, and the users that hold them.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) caps: Caps,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Connections of users other than root, by uid. No number is 0.
    others: HashMap<u32, usize>,
}

/// A connection's place; it is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    uid: u32,
}

impl Places {
    pub(crate) fn new(caps: Caps) -> Self {
        Self {
            caps,
            taken: Mutex::default(),
        }
    }

    /// Takes a place for a user's connection.
    pub(crate) fn take(self: &Arc<Self>, uid: u32) -> Result<Place, Full> {
        let mut taken = self.taken();
        let caps = &self.caps;
        if uid != 0 {
            let own = taken.others.get(&uid).copied().unwrap_or_default();
            if own >= caps.each {
                return Err(Full::Each(own));
            }
            let others = taken.others.values().sum();
            if others >= caps.others {
                return Err(Full::Others(others));
            }
        }
        if taken.all >= caps.all {
            return Err(Full::All(taken.all));
        }
        taken.all += 1;
        if uid != 0 {
            *taken.others.entry(uid).or_default() += 1;
        }
        Ok(Place {
            places: Arc::clone(self),
            uid,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics while it is held.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(own) = taken.others.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.others.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_half_of_the_descriptors_at_most() {
        let caps = |connections, descriptors| {
            let caps = Caps::new(connections, descriptors);
            (caps.all, caps.others, caps.each, caps.silent)
        };
        assert_eq!(caps(512, None), (512, 128, 32, 256));
        assert_eq!(caps(512, Some(1_048_576)), (512, 128, 32, 256));
        assert_eq!(caps(512, Some(256)), (128, 32, 8, 32));
        assert_eq!(caps(512, Some(3)), (1, 1, 1, 1));
        assert_eq!(caps(1, None), (1, 1, 1, 256));
    }

    #[test]
    fn nobody_keeps_root_out_and_no_user_another() {
        let places = Arc::new(Places::new(Caps::new(32, None)));
        let take = |uid| places.take(uid);
        let mut taken: Vec<Place> = (0..2).map(|_| take(1).unwrap()).collect();
        assert_eq!(take(1).unwrap_err(), Full::Each(2));
        for uid in 2..=4 {
            taken.extend((0..2).map(|_| take(uid).unwrap()));
        }
        assert_eq!(take(5).unwrap_err(), Full::Others(8));
        let roots: Vec<Place> = (0..24).map(|_| take(0).unwrap()).collect();
        assert_eq!(take(0).unwrap_err(), Full::All(32));
        taken.pop();
        assert!(take(5).is_ok(), "a place that is free again");
        drop((taken, roots));
        assert_eq!(places.taken().all, 0);
        assert!(places.taken().others.is_empty());
    }
}
