//! The drivers: those of the command line, and those that register as with a kubelet.
//!
//! | module | contents |
//! |---|---|
//! | `registry` | the sockets in the directory where plugins register |
//! | `registration` | a plugin's registration, and its check |
//! | `names` | the drivers by their names |
//! | `watcher` | attends to each socket as long as it exists |

mod names;
mod registration;
mod registry;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::csi::Driver;
use crate::metrics::Metrics;

use names::{Changes, DriverNames, Refused};
use registration::Registration;
use registry::{Identity, Sockets};
use watcher::Watcher;

/// The drivers that there are at a moment.
#[derive(Debug, Clone)]
pub(crate) struct Drivers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: Mutex<DriverNames>,
    changes: watch::Sender<Changed>,
    metrics: Arc<Metrics>,
}

/// How often each driver has come or gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changed(BTreeMap<String, u64>);

impl Changed {
    /// Those that have since.
    pub(crate) fn since(&self, before: &Self) -> BTreeSet<String> {
        let now = self.0.iter();
        let changed = now.filter(|(name, times)| before.0.get(*name) != Some(times));
        changed.map(|(name, _)| name.clone()).collect()
    }
}

impl Drivers {
    /// Those that are there always, by their names and sockets.
    pub(crate) fn new(given: &[(String, PathBuf)], metrics: Arc<Metrics>) -> Self {
        let driver = |(name, socket): &(String, PathBuf)| {
            let driver = Driver::new(name, socket, Arc::clone(&metrics));
            (name.clone(), driver)
        };
        Self(Arc::new(Inner {
            known: Mutex::new(DriverNames::new(given.iter().map(driver).collect())),
            changes: watch::Sender::default(),
            metrics,
        }))
    }

    /// The one by a name.
    pub(crate) fn get(&self, name: &str) -> Option<Driver> {
        self.with(|known| known.get(name).cloned())
    }

    /// Changes whenever [`Self::get`] may have another answer.
    pub(crate) fn changed(&self) -> watch::Receiver<Changed> {
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
        for driver in changes.gone.iter().filter_map(|it| it.driver.as_ref()) {
            self.bump(driver.name());
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
        self.bump(name);
        Ok(())
    }

    fn bump(&self, name: &str) {
        let changes = &self.0.changes;
        changes.send_modify(|it| *it.0.entry(name.to_owned()).or_default() += 1);
    }

    fn with<T>(&self, act: impl FnOnce(&mut DriverNames) -> T) -> T {
        act(&mut self.0.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
