//! The registered drivers by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::registry::{SocketIdentity, Sockets};
use crate::csi::Driver;

/// The drivers that the command line names, and the sockets in the registration directory.
#[derive(Debug)]
pub(super) struct DriverNames {
    given: BTreeMap<String, Driver>,
    sockets: BTreeMap<PathBuf, KnownSocket>,
}

#[derive(Debug)]
struct KnownSocket {
    identity: SocketIdentity,
    /// The driver that has registered with this socket.
    driver: Option<Driver>,
}

/// The changes of the sockets. A socket that was replaced is in both lists.
#[derive(Debug, Default)]
pub(super) struct SocketChanges {
    pub(super) removed: Vec<RemovedSocket>,
    pub(super) added: Vec<(PathBuf, SocketIdentity)>,
}

/// A socket that was removed or replaced.
#[derive(Debug)]
pub(super) struct RemovedSocket {
    pub(super) socket: PathBuf,
    /// The driver that had registered with the socket.
    pub(super) driver: Option<Driver>,
}

/// The reason why a driver can't be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RegistrationRefused {
    /// The command line names another socket.
    #[error(
        "driver {name} registers the endpoint {}, but --csi names {}, which takes precedence",
        endpoint.display(),
        given.display()
    )]
    SetByFlag {
        name: String,
        /// The socket that the driver registers.
        endpoint: PathBuf,
        /// The socket that `--csi` names for this driver.
        given: PathBuf,
    },
    /// Another driver has registered with the name.
    #[error("driver {name} has already registered with {}; hint: remove that socket if nothing listens on it", socket.display())]
    NameInUse {
        name: String,
        /// The socket of the registered driver.
        socket: PathBuf,
    },
    /// The socket was replaced while its plugin was being called.
    #[error("the socket has been replaced")]
    Replaced,
}

impl DriverNames {
    pub(super) fn new(given: BTreeMap<String, Driver>) -> Self {
        Self {
            given,
            sockets: BTreeMap::new(),
        }
    }

    /// Returns the driver with a name. Drivers that the command line names take precedence.
    pub(super) fn get(&self, name: &str) -> Option<&Driver> {
        let registered = || self.registered(name).map(|(_, driver)| driver);
        self.given.get(name).or_else(registered)
    }

    fn registered(&self, name: &str) -> Option<(&Path, &Driver)> {
        let mut registered = self.sockets.iter().filter_map(|(socket, known)| {
            let driver = known.driver.as_ref()?;
            Some((socket.as_path(), driver))
        });
        registered.find(|(_, driver)| driver.name() == name)
    }

    /// Replaces the known sockets, and returns the changes.
    pub(super) fn update(&mut self, found: &Sockets) -> SocketChanges {
        let mut changes = SocketChanges::default();
        self.sockets.retain(|socket, known| {
            let is_same = found.get(socket) == Some(&known.identity);
            if !is_same {
                changes.removed.push(RemovedSocket {
                    socket: socket.clone(),
                    driver: known.driver.take(),
                });
            }
            is_same
        });
        for (socket, &identity) in found {
            self.sockets.entry(socket.clone()).or_insert_with(|| {
                changes.added.push((socket.clone(), identity));
                let driver = None;
                KnownSocket { identity, driver }
            });
        }
        changes
    }

    pub(super) fn register(
        &mut self,
        socket: &Path,
        identity: SocketIdentity,
        driver: Driver,
    ) -> Result<(), RegistrationRefused> {
        let name = driver.name();
        if let Some(given) = self.given.get(name)
            && given.socket() != driver.socket()
        {
            return Err(RegistrationRefused::SetByFlag {
                name: name.to_owned(),
                endpoint: driver.socket().to_owned(),
                given: given.socket().to_owned(),
            });
        }
        // The first registration stays. The second driver is either misconfigured, or it replaces a driver that is
        // terminating.
        if let Some((another, _)) = self.registered(name)
            && another != socket
        {
            return Err(RegistrationRefused::NameInUse {
                name: name.to_owned(),
                socket: another.to_owned(),
            });
        }
        let known = self.sockets.get_mut(socket);
        let known = known.filter(|known| known.identity == identity);
        known.ok_or(RegistrationRefused::Replaced)?.driver = Some(driver);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::Metrics;

    fn driver(socket: &str) -> Driver {
        Driver::new("a", Path::new(socket), Arc::new(Metrics::new()))
    }

    fn sockets(found: &[(&str, SocketIdentity)]) -> Sockets {
        let socket = |&(path, identity): &(&str, SocketIdentity)| (PathBuf::from(path), identity);
        found.iter().map(socket).collect()
    }

    #[test]
    fn the_driver_of_a_replaced_socket_is_not_registered() {
        let [old, new] =
            ["/proc", "/sys"].map(|path| SocketIdentity::read(Path::new(path)).unwrap().1);
        let mut names = DriverNames::new(BTreeMap::new());
        names.update(&sockets(&[("/r", old)]));
        let changes = names.update(&sockets(&[("/r", new)]));
        assert_eq!(changes.added, [(PathBuf::from("/r"), new)]);
        assert_eq!(changes.removed.len(), 1);
        let registry = Path::new("/r");
        assert_eq!(
            names.register(registry, old, driver("/1")),
            Err(RegistrationRefused::Replaced)
        );
        assert_eq!(names.register(registry, new, driver("/2")), Ok(()));
        assert_eq!(names.get("a").unwrap().socket(), Path::new("/2"));
        let changes = names.update(&Sockets::new());
        assert_eq!(changes.removed[0].driver.as_ref().unwrap().name(), "a");
        assert!(names.get("a").is_none());
    }
}
