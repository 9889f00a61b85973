//! Attends to each socket as long as it exists, as kubelet's plugin watcher and plugin manager do.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::Drivers;
use super::names::{Gone, Refused};
use super::registration::{self, Unfit};
use super::registry::{Found, Identity, look};
use crate::volumes::backoff::Backoff;
use crate::watch::DirWatch;
use crust_serve::client::CallFailure;

/// The interval of looks at a directory that can't be watched.
const UNWATCHED: Duration = Duration::from_secs(10);

/// A plugin hasn't registered.
#[derive(Debug, thiserror::Error)]
enum NotRegistered {
    /// It doesn't answer.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// It is no driver that can be used.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Its name isn't to be had.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl NotRegistered {
    /// Whether asking again has the same answer as long as the socket is the same.
    fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused(Refused::Given { .. } | Refused::Replaced)
        )
    }
}

/// The watcher of one directory.
pub(super) struct Watcher {
    drivers: Drivers,
    registry: PathBuf,
    watch: Option<DirWatch>,
    tasks: JoinSet<()>,
    /// Whoever asks at a socket who is there.
    asking: BTreeMap<PathBuf, AbortHandle>,
    /// The warnings about skipped entries, each of which is logged once.
    told: BTreeMap<PathBuf, String>,
}

impl Watcher {
    /// Returns the watcher of a directory, which is made if it doesn't exist.
    pub(super) fn new(drivers: Drivers, registry: PathBuf) -> Self {
        Self {
            drivers,
            registry,
            watch: None,
            tasks: JoinSet::new(),
            asking: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Has no end.
    pub(super) async fn run(mut self) {
        loop {
            let watched = self.begin();
            let found = self.look();
            let left = found.left.iter();
            let mut left: BTreeMap<PathBuf, String> = left
                .map(|(path, why)| (path.clone(), why.to_string()))
                .collect();
            if let Err(error) = watched {
                left.insert(self.registry.clone(), error.to_string());
            }
            self.tell(left);
            self.attend(&found);
            match &mut self.watch {
                Some(watch) => watch.changed().await,
                None => sleep(UNWATCHED).await,
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        if self.watch.is_none() {
            // kubelet's mode.
            let mut missing = DirBuilder::new();
            missing.recursive(true).mode(0o750).create(&self.registry)?;
            self.watch = Some(DirWatch::new(std::slice::from_ref(&self.registry))?);
        }
        Ok(())
    }

    /// Reads the directory, and once more if a directory in it wasn't watched yet: something may have come into it
    /// before.
    fn look(&mut self) -> Found {
        loop {
            let found = look(&self.registry);
            let watch = self.watch.as_mut();
            if !watch.is_some_and(|watch| watch.set(&found.directories)) {
                return found;
            }
        }
    }

    fn tell(&mut self, left: BTreeMap<PathBuf, String>) {
        for (path, why) in &left {
            if self.told.get(path) != Some(why) {
                tracing::warn!("plugins: {} is left out: {why}", path.display());
            }
        }
        self.told = left;
    }

    fn attend(&mut self, found: &Found) {
        let changes = self.drivers.see(&found.sockets);
        for Gone { socket, driver } in changes.gone {
            // What it still has to say isn't listened to any more.
            if let Some(asking) = self.asking.remove(&socket) {
                asking.abort();
            }
            if let Some(driver) = driver {
                let socket = socket.display();
                tracing::info!("driver {} has gone with {socket}", driver.name());
            }
        }
        for (socket, identity) in changes.new {
            let registered = register(self.drivers.clone(), socket.clone(), identity);
            let asking = self.tasks.spawn(registered);
            self.asking.insert(socket, asking);
        }
    }
}

/// Asks until there is an answer that stands.
async fn register(drivers: Drivers, socket: PathBuf, identity: Identity) {
    let mut backoff = Backoff::default();
    let mut changes = drivers.changed();
    let place = socket.display();
    loop {
        changes.mark_unchanged();
        match try_register(&drivers, &socket, identity).await {
            Ok(name) => return tracing::info!("driver {name} has registered by {place}"),
            Err(error) => {
                tracing::warn!("plugins: {place}: {error}");
                if error.is_final() {
                    return;
                }
            }
        }
        // Whoever had its name may be gone.
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep(backoff.fail(&(), std::time::Instant::now())) => {}
        }
    }
}

async fn try_register(
    drivers: &Drivers,
    socket: &Path,
    identity: Identity,
) -> Result<String, NotRegistered> {
    let info = registration::ask(socket).await?;
    let registered = registration::check(info, socket)
        .map_err(NotRegistered::from)
        .and_then(|registration| {
            drivers.take(socket, identity, &registration)?;
            Ok(registration.name)
        });
    let refused = registered.as_ref().err().map(ToString::to_string);
    // It is registered, or isn't, whether it hears of it or not.
    if let Err(failure) = registration::tell(socket, refused).await {
        let socket = socket.display();
        tracing::warn!("plugins: {socket}: NotifyRegistrationStatus: {failure}");
    }
    registered
}
