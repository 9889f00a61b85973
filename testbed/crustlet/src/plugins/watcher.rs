//! Registers the driver of each socket for as long as the socket exists, as kubelet's plugin watcher and plugin manager
//! do.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::Drivers;
use super::names::{RegistrationRefused, RemovedSocket};
use super::registration::{self, InvalidRegistration};
use super::registry::{RegistryContents, SocketIdentity, scan};
use crate::volumes::backoff::Backoff;
use crate::watch::DirWatch;
use crust_serve::client::CallFailure;

/// The interval at which a directory that can't be watched is listed.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(10);

/// The reason why a plugin wasn't registered.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(transparent)]
    Call(#[from] CallFailure),
    #[error(transparent)]
    Invalid(#[from] InvalidRegistration),
    #[error(transparent)]
    Refused(#[from] RegistrationRefused),
}

impl RegistrationError {
    /// Returns whether a retry with the same socket would fail in the same way.
    fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused(RegistrationRefused::SetByFlag { .. } | RegistrationRefused::Replaced)
        )
    }
}

/// The watcher of the registration directory.
pub(super) struct Watcher {
    drivers: Drivers,
    registry: PathBuf,
    watch: Option<DirWatch>,
    tasks: JoinSet<()>,
    /// The tasks that register the plugins, by their sockets.
    registrations: BTreeMap<PathBuf, AbortHandle>,
    /// The last warning about each skipped entry. It is logged again only if it changes.
    warnings: BTreeMap<PathBuf, String>,
}

impl Watcher {
    /// Creates the watcher of a directory. [`Self::run`] creates the directory if it doesn't exist.
    pub(super) fn new(drivers: Drivers, registry: PathBuf) -> Self {
        Self {
            drivers,
            registry,
            watch: None,
            tasks: JoinSet::new(),
            registrations: BTreeMap::new(),
            warnings: BTreeMap::new(),
        }
    }

    /// Watches the directory. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            let watched = self.start_watch();
            let contents = self.scan();
            let skipped = contents.skipped.iter();
            let mut warnings: BTreeMap<PathBuf, String> = skipped
                .map(|(path, reason)| (path.clone(), reason.to_string()))
                .collect();
            if let Err(error) = watched {
                warnings.insert(self.registry.clone(), error.to_string());
            }
            self.warn(warnings);
            self.update(&contents);
            match &mut self.watch {
                Some(watch) => watch.changed().await,
                None => sleep(UNWATCHED_INTERVAL).await,
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    /// Creates and watches the directory, unless it is watched already.
    fn start_watch(&mut self) -> io::Result<()> {
        if self.watch.is_none() {
            // The mode is kubelet's.
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o750).create(&self.registry)?;
            self.watch = Some(DirWatch::new(std::slice::from_ref(&self.registry))?);
        }
        Ok(())
    }

    /// Lists the directory until all its subdirectories are watched, because sockets may have been created in a
    /// subdirectory before it was watched.
    fn scan(&mut self) -> RegistryContents {
        loop {
            let contents = scan(&self.registry);
            let watch = self.watch.as_mut();
            if !watch.is_some_and(|watch| watch.set(&contents.directories)) {
                return contents;
            }
        }
    }

    fn warn(&mut self, warnings: BTreeMap<PathBuf, String>) {
        for (path, reason) in &warnings {
            if self.warnings.get(path) != Some(reason) {
                tracing::warn!("plugins: skipped {}: {reason}", path.display());
            }
        }
        self.warnings = warnings;
    }

    /// Unregisters the drivers of removed sockets, and starts to register the drivers of new sockets.
    fn update(&mut self, contents: &RegistryContents) {
        let changes = self.drivers.update(&contents.sockets);
        for RemovedSocket { socket, driver } in changes.removed {
            if let Some(registration) = self.registrations.remove(&socket) {
                registration.abort();
            }
            if let Some(driver) = driver {
                let socket = socket.display();
                tracing::info!(
                    "driver {} unregistered: its socket {socket} was removed or replaced",
                    driver.name()
                );
            }
        }
        for (socket, identity) in changes.added {
            let registration = register(self.drivers.clone(), socket.clone(), identity);
            let registration = self.tasks.spawn(registration);
            self.registrations.insert(socket, registration);
        }
    }
}

/// Registers the driver of a socket. Retries until it succeeds, or a retry is useless.
async fn register(drivers: Drivers, socket: PathBuf, identity: SocketIdentity) {
    let mut backoff = Backoff::default();
    let mut changes = drivers.subscribe();
    let path = socket.display();
    loop {
        changes.mark_unchanged();
        match try_register(&drivers, &socket, identity).await {
            Ok(name) => return tracing::info!("driver {name} registered with {path}"),
            Err(error) => {
                tracing::warn!("plugins: cannot register {path}: {error}");
                if error.is_final() {
                    return;
                }
            }
        }
        // A change may have freed the driver's name.
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep(backoff.fail(&(), std::time::Instant::now())) => {}
        }
    }
}

async fn try_register(
    drivers: &Drivers,
    socket: &Path,
    identity: SocketIdentity,
) -> Result<String, RegistrationError> {
    let info = registration::get_info(socket).await?;
    let registered = registration::check(info, socket)
        .map_err(RegistrationError::from)
        .and_then(|registration| {
            drivers.register(socket, identity, &registration)?;
            Ok(registration.name)
        });
    let error = registered.as_ref().err().map(ToString::to_string);
    // A failure doesn't change the registration.
    if let Err(failure) = registration::notify_status(socket, error).await {
        let socket = socket.display();
        tracing::warn!("plugins: {socket}: NotifyRegistrationStatus: {failure}");
    }
    registered
}
