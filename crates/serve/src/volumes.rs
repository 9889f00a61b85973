//! One call at a time for a volume, and as many volumes at a time as there are.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Whose turn it is, by volume: by whatever a daemon knows one from the other.
#[derive(Debug, Clone)]
pub struct Volumes<K>(Arc<Mutex<Turns<K>>>);

type Turns<K> = HashMap<K, Arc<Turn<()>>>;

/// A call's turn. It goes along with the call's work, which may outlast its caller: what a caller
/// that has hung up asked for is done before the next call's, or not at all.
#[derive(Debug)]
pub struct Held<K: Eq + Hash> {
    volumes: Volumes<K>,
    volume: K,
    turn: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for Volumes<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Volumes<K> {
    /// Waits for the calls before. (Those of other processes are waited for by the volume's lock
    /// on the disk, which a thread would wait for.)
    pub async fn turn(&self, volume: K) -> Held<K> {
        let turn = Arc::clone(self.known().entry(volume.clone()).or_default());
        // Before it waits: a caller that hangs up meanwhile is the last one, too, now and then.
        let mut held = self.held(volume, None);
        held.turn = Some(turn.lock_owned().await);
        held
    }

    /// The turn, unless another call has it or waits for it.
    #[must_use]
    pub fn try_turn(&self, volume: &K) -> Option<Held<K>> {
        let turn = {
            // Kept for as long as this may be one more of those who would have it.
            let mut known = self.known();
            let turn = Arc::clone(known.entry(volume.clone()).or_default());
            // A turn that ends is at once that of whoever waits (tokio's `Mutex` is fair).
            turn.try_lock_owned().ok()?
        };
        Some(self.held(volume.clone(), Some(turn)))
    }

    fn held(&self, volume: K, turn: Option<OwnedMutexGuard<()>>) -> Held<K> {
        Held {
            volumes: self.clone(),
            volume,
            turn,
        }
    }
}

impl<K> Volumes<K> {
    fn known(&self) -> MutexGuard<'_, Turns<K>> {
        // Nothing in here panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Held<K> {
    fn drop(&mut self) {
        let mut known = self.volumes.known();
        self.turn.take();
        // One in the map: nobody has it, or waits.
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
        let volumes = Volumes::default();
        let first = volumes.turn("a").await;
        let other = volumes.turn("b").await;
        let mut second = Box::pin(volumes.turn("a"));
        assert!(waits(&mut second).await, "it is the first one's turn");
        drop(other);
        assert_eq!(volumes.known().len(), 1);
        drop(first);
        let second = second.await;
        assert_eq!(volumes.known().len(), 1);
        let mut third = Box::pin(volumes.turn("a"));
        assert!(waits(&mut third).await);
        drop(second);
        // It has its turn, and hangs up before it takes it.
        drop(third);
        assert!(volumes.known().is_empty());
    }

    #[tokio::test]
    async fn whoever_does_not_wait_has_no_turn_while_others_have_it_or_wait() {
        let volumes = Volumes::default();
        let first = volumes.try_turn(&"a").unwrap();
        assert!(volumes.try_turn(&"a").is_none());
        assert!(volumes.try_turn(&"b").is_some(), "another volume");
        let mut second = Box::pin(volumes.turn("a"));
        assert!(waits(&mut second).await);
        drop(first);
        assert!(volumes.try_turn(&"a").is_none(), "it is the second one's");
        let second = second.await;
        assert!(volumes.try_turn(&"a").is_none());
        drop(second);
        let third = volumes.try_turn(&"a").unwrap();
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
