//! The node of all pods with one delegate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use runcrust_tests::{Delegate, Node, Ops};

use crate::leftovers::DaemonResources;

/// A node with a `crust_ops` that reconciles every second.
pub(crate) struct SoakNode {
    pub(crate) ops: Ops,
    pub(crate) node: Node,
    pods: AtomicUsize,
    /// The daemon's resources after the first batch of pods.
    pub(crate) first: Mutex<Option<DaemonResources>>,
}

impl SoakNode {
    pub(crate) fn new(delegate: Delegate) -> Self {
        let node = Node::trusted(delegate, "");
        Self {
            ops: Ops::with(&node, "reconcile_interval = 1"),
            node,
            pods: AtomicUsize::new(0),
            first: Mutex::new(None),
        }
    }

    /// Returns a new uid.
    pub(crate) fn uid(&self) -> String {
        let number = self.pods.fetch_add(1, Ordering::Relaxed);
        format!("50a4{number:04x}-0000-4000-8000-000000000000")
    }

    /// Returns the daemon's resources after the first batch, which are `now` at the first call.
    pub(crate) fn first_memory(&self, now: DaemonResources) -> DaemonResources {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        *first.get_or_insert(now)
    }
}
