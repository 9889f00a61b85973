//! One call at a time for a volume, and as many volumes at a time as there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crust_state::Digest;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Whose turn it is, by volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volumes(Arc<Mutex<Turns>>);

type Turns = HashMap<Digest, Arc<Turn<()>>>;

/// A call's turn. It goes along with the call's work, which may outlast its caller: what a caller
/// that has hung up asked for is done before the next call's, or not at all.
#[derive(Debug)]
pub(crate) struct Held {
    volumes: Volumes,
    volume: Digest,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Volumes {
    /// Waits for the calls before. (Those of other processes are waited for by the volume's lock
    /// on the disk, which a thread would wait for.)
    pub(crate) async fn turn(&self, volume: Digest) -> Held {
        // Before it waits: a caller that hangs up meanwhile is the last one, too, now and then.
        let mut held = Held {
            turn: None,
            volumes: self.clone(),
            volume,
        };
        let turn = Arc::clone(self.known().entry(volume).or_default());
        held.turn = Some(turn.lock_owned().await);
        held
    }

    fn known(&self) -> MutexGuard<'_, Turns> {
        // Nothing in here panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
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
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let first = volumes.turn(a).await;
        let other = volumes.turn(b).await;
        let mut second = Box::pin(volumes.turn(a));
        let waits = futures_poll(&mut second).await;
        assert!(waits, "it is the first one's turn");
        drop(other);
        assert_eq!(volumes.known().len(), 1);
        drop(first);
        let second = second.await;
        assert_eq!(volumes.known().len(), 1);
        let mut third = Box::pin(volumes.turn(a));
        assert!(futures_poll(&mut third).await);
        drop(second);
        // It has its turn, and hangs up before it takes it.
        drop(third);
        assert!(volumes.known().is_empty());
    }

    /// Whether a future isn't ready yet.
    async fn futures_poll(future: &mut (impl Future + Unpin)) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }
}
