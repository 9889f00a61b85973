//! Which drivers there are: those that were named, and those that register as they do with kubelet.
//!
//! | room | what is there |
//! |---|---|
//! | `registry` | the sockets in the directory where plugins register |
//! | `registration` | what a plugin says of itself, and whether that is a driver's word |
//! | `known` | which driver has which name |
//! | `watcher` | each socket attended to as long as it is there |

mod known;
mod registration;
mod registry;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::csi::Driver;
use crate::metrics::Metrics;

use known::{Changes, Known, Refused};
use registration::Registration;
use registry::{Identity, Sockets};
use watcher::Watcher;

/// The drivers that there are at a moment.
#[derive(Debug, Clone)]
pub(crate) struct Drivers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: Mutex<Known>,
    changes: watch::Sender<u64>,
    metrics: Arc<Metrics>,
}

impl Drivers {
    /// Those that are there always, by their names and sockets.
    pub(crate) fn new(given: &[(String, PathBuf)], metrics: Arc<Metrics>) -> Self {
        let driver = |(name, socket): &(String, PathBuf)| {
            let driver = Driver::new(name, socket, Arc::clone(&metrics));
            (name.clone(), driver)
        };
        Self(Arc::new(Inner {
            known: Mutex::new(Known::new(given.iter().map(driver).collect())),
            changes: watch::Sender::new(0),
            metrics,
        }))
    }

    /// The one by a name.
    pub(crate) fn get(&self, name: &str) -> Option<Driver> {
        self.with(|known| known.get(name).cloned())
    }

    /// Sees a new number whenever [`Self::get`] may have another answer.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Has drivers register by the sockets in a directory, as long as they are there: kubelet's plugin watcher.
    /// It has no end.
    pub(crate) async fn watch(self, registry: PathBuf) {
        Watcher::new(self, registry).run().await;
    }

    /// These are the sockets that there are now.
    fn see(&self, sockets: &Sockets) -> Changes {
        let changes = self.with(|known| known.see(sockets));
        if changes.gone.iter().any(|gone| gone.driver.is_some()) {
            self.bump();
        }
        changes
    }

    /// Takes a driver in that has registered by a socket.
    fn take(
        &self,
        socket: &Path,
        identity: Identity,
        registration: &Registration,
    ) -> Result<(), Refused> {
        let Registration { name, endpoint } = registration;
        let driver = Driver::new(name, endpoint, Arc::clone(&self.0.metrics));
        self.with(|known| known.take(socket, identity, driver))?;
        self.bump();
        Ok(())
    }

    fn bump(&self) {
        self.0.changes.send_modify(|number| *number += 1);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.0.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
