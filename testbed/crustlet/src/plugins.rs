//! The registered CSI drivers: those of `--csi`, and those that register in a directory, as with kubelet.
//!
//! | module | contents |
//! |---|---|
//! | `registry` | lists the sockets in the registration directory |
//! | `registration` | gets and checks the registration of a plugin |
//! | `names` | the drivers by name |
//! | `watcher` | registers the driver of each socket |

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

use names::{DriverNames, RegistrationRefused, SocketChanges};
use registration::Registration;
use registry::{SocketIdentity, Sockets};
use watcher::Watcher;

/// The registered drivers. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Drivers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    names: Mutex<DriverNames>,
    changes: watch::Sender<DriverChanges>,
    metrics: Arc<Metrics>,
}

/// The number of times that each driver has been registered or unregistered.
#[derive(Debug, Clone, Default)]
pub(crate) struct DriverChanges(BTreeMap<String, u64>);

impl DriverChanges {
    /// Returns the names of the drivers that have changed since an earlier state.
    pub(crate) fn since(&self, earlier: &Self) -> BTreeSet<String> {
        let counts = self.0.iter();
        let changed = counts.filter(|(name, count)| earlier.0.get(*name) != Some(count));
        changed.map(|(name, _)| name.clone()).collect()
    }
}

impl Drivers {
    /// Creates the set of registered drivers. `given` has the drivers of the command line, by name and socket. They are
    /// always registered.
    pub(crate) fn new(given: &[(String, PathBuf)], metrics: Arc<Metrics>) -> Self {
        let driver = |(name, socket): &(String, PathBuf)| {
            let driver = Driver::new(name, socket, Arc::clone(&metrics));
            (name.clone(), driver)
        };
        Self(Arc::new(Inner {
            names: Mutex::new(DriverNames::new(given.iter().map(driver).collect())),
            changes: watch::Sender::default(),
            metrics,
        }))
    }

    /// Returns the driver with a name, if it is registered.
    pub(crate) fn get(&self, name: &str) -> Option<Driver> {
        self.with_names(|names| names.get(name).cloned())
    }

    /// Returns a receiver that is notified when a driver is registered or unregistered.
    pub(crate) fn subscribe(&self) -> watch::Receiver<DriverChanges> {
        self.0.changes.subscribe()
    }

    /// Registers and unregisters drivers as their sockets appear and disappear in a directory, as kubelet's plugin
    /// watcher does. Never returns.
    pub(crate) async fn watch(self, registry: PathBuf) {
        Watcher::new(self, registry).run().await;
    }

    /// Updates the known sockets. Unregisters the drivers of sockets that are gone.
    fn update(&self, sockets: &Sockets) -> SocketChanges {
        let changes = self.with_names(|names| names.update(sockets));
        for driver in changes
            .removed
            .iter()
            .filter_map(|removed| removed.driver.as_ref())
        {
            self.notify(driver.name());
        }
        changes
    }

    fn register(
        &self,
        socket: &Path,
        identity: SocketIdentity,
        registration: &Registration,
    ) -> Result<(), RegistrationRefused> {
        let Registration { name, endpoint } = registration;
        let driver = Driver::new(name, endpoint, Arc::clone(&self.0.metrics));
        self.with_names(|names| names.register(socket, identity, driver))?;
        self.notify(name);
        Ok(())
    }

    fn notify(&self, name: &str) {
        let changes = &self.0.changes;
        changes.send_modify(|counts| *counts.0.entry(name.to_owned()).or_default() += 1);
    }

    fn with_names<T>(&self, function: impl FnOnce(&mut DriverNames) -> T) -> T {
        function(&mut self.0.names.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
