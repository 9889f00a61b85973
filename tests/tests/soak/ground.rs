//! What pods of one delegate share: a node, and the daemon that stages for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use runcrust_tests::{Delegate, Node, Ops};

use crate::census::Memory;

/// A node with a `crust_ops` that cleans up every second.
pub(crate) struct Ground {
    pub(crate) ops: Ops,
    pub(crate) node: Node,
    pods: AtomicUsize,
    /// What the daemon had after the first batch of pods.
    pub(crate) first: Mutex<Option<Memory>>,
}

impl Ground {
    pub(crate) fn new(delegate: Delegate) -> Self {
        let node = Node::trusted(delegate, "");
        Self {
            ops: Ops::with(&node, "reconcile_interval = 1"),
            node,
            pods: AtomicUsize::new(0),
            first: Mutex::new(None),
        }
    }

    /// Of a pod that there wasn't yet.
    pub(crate) fn uid(&self) -> String {
        let number = self.pods.fetch_add(1, Ordering::Relaxed);
        format!("50a4{number:04x}-0000-4000-8000-000000000000")
    }

    /// What the daemon had first; what it has now, where that is the first time.
    pub(crate) fn measured(&self, now: Memory) -> Memory {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        *first.get_or_insert(now)
    }
}
