//! Turns of calls: one at a time for a volume, and any number of volumes at a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// The turns of calls by volume, whose keys are whatever a daemon tells volumes apart by.
#[derive(Debug, Clone)]
pub struct KeyedLocks<K>(Arc<Mutex<Turns<K>>>);

type Turns<K> = HashMap<K, Arc<Turn<()>>>;

/// A call's turn. The call's work holds it and may outlast the caller: what a caller that has hung up asked for is done
/// before the next call's work, or not at all.
#[derive(Debug)]
pub struct KeyedLockGuard<K: Eq + Hash> {
    volumes: KeyedLocks<K>,
    volume: K,
    turn: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> KeyedLocks<K> {
    /// Waits for the earlier calls of this process. (Other processes are kept out by the volume's lock on the disk.)
    pub async fn lock(&self, volume: K) -> KeyedLockGuard<K> {
        let turn = Arc::clone(self.known().entry(volume.clone()).or_default());
        // Made before the wait: a caller that hangs up meanwhile may be the last one, and its entry has to go, too.
        let mut held = self.held(volume, None);
        held.turn = Some(turn.lock_owned().await);
        held
    }

    /// Returns the turn, unless another call has it or waits for it.
    #[must_use]
    pub fn try_lock(&self, volume: &K) -> Option<KeyedLockGuard<K>> {
        let turn = {
            // Locked while there may be one more clone than calls.
            let mut known = self.known();
            let turn = Arc::clone(known.entry(volume.clone()).or_default());
            // A turn that ends goes to a waiting call at once (tokio's `Mutex` is fair).
            turn.try_lock_owned().ok()?
        };
        Some(self.held(volume.clone(), Some(turn)))
    }

    fn held(&self, volume: K, turn: Option<OwnedMutexGuard<()>>) -> KeyedLockGuard<K> {
        KeyedLockGuard {
            volumes: self.clone(),
            volume,
            turn,
        }
    }
}

impl<K> KeyedLocks<K> {
    fn known(&self) -> MutexGuard<'_, Turns<K>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for KeyedLockGuard<K> {
    fn drop(&mut self) {
        let mut known = self.volumes.known();
        self.turn.take();
        // The map's own clone alone: no call has the turn, or waits for it.
        if known
            .get(&self.volume)
            .is_some_and(|turn| Arc::strong_count(turn) == 1)
        {
            known.remove(&self.volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_volume_is_forgotten_with_its_last_call() {
        let volumes = KeyedLocks::default();
        let first = volumes.lock("a").await;
        let other = volumes.lock("b").await;
        let mut second = Box::pin(volumes.lock("a"));
        assert!(waits(&mut second).await, "it is the first one's turn");
        drop(other);
        assert_eq!(volumes.known().len(), 1);
        drop(first);
        let second = second.await;
        assert_eq!(volumes.known().len(), 1);
        let mut third = Box::pin(volumes.lock("a"));
        assert!(waits(&mut third).await);
        drop(second);
        // It has its turn, and hangs up before it takes it.
        drop(third);
        assert!(volumes.known().is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_does_not_wait_never_overtakes() {
        let volumes = KeyedLocks::default();
        let first = volumes.try_lock(&"a").unwrap();
        assert!(volumes.try_lock(&"a").is_none());
        assert!(volumes.try_lock(&"b").is_some(), "another volume");
        let mut second = Box::pin(volumes.lock("a"));
        assert!(waits(&mut second).await);
        drop(first);
        assert!(volumes.try_lock(&"a").is_none(), "it is the second one's");
        let second = second.await;
        assert!(volumes.try_lock(&"a").is_none());
        drop(second);
        let third = volumes.try_lock(&"a").unwrap();
        drop(third);
        assert!(volumes.known().is_empty());
    }

    /// Whether a future isn't ready yet.
    async fn waits(future: &mut (impl Future + Unpin)) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }
}
