//! Locks by key, so that a daemon handles one call at a time for each volume, and any number of volumes at a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A set of fair locks, one for each key. The key identifies a volume. Clones share the locks.
#[derive(Debug, Clone)]
pub struct KeyedLocks<K>(Arc<Mutex<LocksByKey<K>>>);

/// The locks that calls hold or wait for, by their keys.
type LocksByKey<K> = HashMap<K, Arc<AsyncMutex<()>>>;

/// A held lock. Dropping it releases the lock. The work of a call holds the lock, also after the caller has
/// hung up. So the work is completed before the next call's work begins, or it never begins.
#[derive(Debug)]
pub struct KeyedLockGuard<K: Eq + Hash> {
    locks: KeyedLocks<K>,
    key: K,
    /// `None` while waiting for the lock.
    guard: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> KeyedLocks<K> {
    /// Waits for the lock. Earlier callers get it first. Excludes only the calls of this process. The lock of the
    /// volume's entry on disk excludes other processes.
    pub async fn lock(&self, key: K) -> KeyedLockGuard<K> {
        let lock = Arc::clone(self.by_key().entry(key.clone()).or_default());
        // The guard is made before the wait. If the caller hangs up meanwhile, dropping it removes an unused entry.
        let mut guard = self.guard(key, None);
        guard.guard = Some(lock.lock_owned().await);
        guard
    }

    /// Returns the lock, or `None` if another call holds it or waits for it.
    #[must_use]
    pub fn try_lock(&self, key: &K) -> Option<KeyedLockGuard<K>> {
        let guard = {
            // The map must stay locked, because until the clone is dropped there can be one more clone than calls.
            let mut by_key = self.by_key();
            let lock = Arc::clone(by_key.entry(key.clone()).or_default());
            // Fails if a call waits: a released lock goes to a waiting call at once (tokio's `Mutex` is fair).
            lock.try_lock_owned().ok()?
        };
        Some(self.guard(key.clone(), Some(guard)))
    }

    fn guard(&self, key: K, guard: Option<OwnedMutexGuard<()>>) -> KeyedLockGuard<K> {
        KeyedLockGuard {
            locks: self.clone(),
            key,
            guard,
        }
    }
}

impl<K> KeyedLocks<K> {
    fn by_key(&self) -> MutexGuard<'_, LocksByKey<K>> {
        // Nothing panics while the lock is held, so it is never poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for KeyedLockGuard<K> {
    fn drop(&mut self) {
        let mut by_key = self.locks.by_key();
        self.guard.take();
        // If the map has the only clone, no call holds the lock or waits for it.
        if by_key
            .get(&self.key)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            by_key.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_entry_is_removed_with_its_last_call() {
        let locks = KeyedLocks::default();
        let first = locks.lock("a").await;
        let other = locks.lock("b").await;
        let mut second = Box::pin(locks.lock("a"));
        assert!(
            is_pending(&mut second).await,
            "the first call holds the lock"
        );
        drop(other);
        assert_eq!(locks.by_key().len(), 1);
        drop(first);
        let second = second.await;
        assert_eq!(locks.by_key().len(), 1);
        let mut third = Box::pin(locks.lock("a"));
        assert!(is_pending(&mut third).await);
        drop(second);
        // The third call gets the lock, but its caller hangs up before it is polled.
        drop(third);
        assert!(locks.by_key().is_empty());
    }

    #[tokio::test]
    async fn try_lock_never_overtakes_a_waiting_call() {
        let locks = KeyedLocks::default();
        let first = locks.try_lock(&"a").unwrap();
        assert!(locks.try_lock(&"a").is_none());
        assert!(locks.try_lock(&"b").is_some(), "the lock of another key");
        let mut second = Box::pin(locks.lock("a"));
        assert!(is_pending(&mut second).await);
        drop(first);
        assert!(locks.try_lock(&"a").is_none(), "the second call is next");
        let second = second.await;
        assert!(locks.try_lock(&"a").is_none());
        drop(second);
        let third = locks.try_lock(&"a").unwrap();
        drop(third);
        assert!(locks.by_key().is_empty());
    }

    /// Returns whether a future is pending.
    async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }
}
