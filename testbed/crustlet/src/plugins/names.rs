//! The drivers by their names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::registry::{Identity, Sockets};
use crate::csi::Driver;

/// The drivers of the command line, and the sockets by which others register.
#[derive(Debug)]
pub(super) struct DriverNames {
    given: BTreeMap<String, Driver>,
    sockets: BTreeMap<PathBuf, KnownSocket>,
}

#[derive(Debug)]
struct KnownSocket {
    identity: Identity,
    /// The driver that has registered by it.
    driver: Option<Driver>,
}

/// The changes since the last look at the directory.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Nobody registers by these any more. One that is another's now is here and below.
    pub(super) gone: Vec<Gone>,
    /// To be asked who they are.
    pub(super) new: Vec<(PathBuf, Identity)>,
}

/// A socket that is gone.
#[derive(Debug)]
pub(super) struct Gone {
    /// The path of the socket.
    pub(super) socket: PathBuf,
    /// The driver that had registered by it.
    pub(super) driver: Option<Driver>,
}

/// A driver isn't taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// The command line knows better.
    #[error(
        "driver {name} says that it listens on {}, and --csi names {}, which counts",
        endpoint.display(),
        given.display()
    )]
    Given {
        /// The driver.
        name: String,
        /// The socket that it reports.
        endpoint: PathBuf,
        /// The socket of the command line.
        given: PathBuf,
    },
    /// Somebody has the name.
    #[error("driver {name} has registered by {} already; hint: remove that socket if nobody listens on it", socket.display())]
    Another {
        name: String,
        /// The socket of the driver that has the name.
        socket: PathBuf,
    },
    /// Whoever was asked isn't who is there.
    #[error("the socket is another one now")]
    Replaced,
}

impl DriverNames {
    /// Those that are there always.
    pub(super) fn new(given: BTreeMap<String, Driver>) -> Self {
        Self {
            given,
            sockets: BTreeMap::new(),
        }
    }

    /// The one by a name.
    pub(super) fn get(&self, name: &str) -> Option<&Driver> {
        let registered = || self.registered(name).map(|(_, driver)| driver);
        self.given.get(name).or_else(registered)
    }

    fn registered(&self, name: &str) -> Option<(&Path, &Driver)> {
        let mut registered = self.sockets.iter().filter_map(|(socket, seen)| {
            let driver = seen.driver.as_ref()?;
            Some((socket.as_path(), driver))
        });
        registered.find(|(_, driver)| driver.name() == name)
    }

    /// These are the sockets that there are now.
    pub(super) fn see(&mut self, found: &Sockets) -> Changes {
        let mut changes = Changes::default();
        self.sockets.retain(|socket, seen| {
            let is_same = found.get(socket) == Some(&seen.identity);
            if !is_same {
                changes.gone.push(Gone {
                    socket: socket.clone(),
                    driver: seen.driver.take(),
                });
            }
            is_same
        });
        for (socket, &identity) in found {
            self.sockets.entry(socket.clone()).or_insert_with(|| {
                changes.new.push((socket.clone(), identity));
                let driver = None;
                KnownSocket { identity, driver }
            });
        }
        changes
    }

    /// Takes a driver in that has registered by a socket.
    pub(super) fn take(
        &mut self,
        socket: &Path,
        identity: Identity,
        driver: Driver,
    ) -> Result<(), Refused> {
        let name = driver.name();
        if let Some(given) = self.given.get(name)
            && given.socket() != driver.socket()
        {
            return Err(Refused::Given {
                name: name.to_owned(),
                endpoint: driver.socket().to_owned(),
                given: given.socket().to_owned(),
            });
        }
        // The first stays: two that say the same of themselves are a mistake, or one's end and another's
        // beginning.
        if let Some((another, _)) = self.registered(name)
            && another != socket
        {
            return Err(Refused::Another {
                name: name.to_owned(),
                socket: another.to_owned(),
            });
        }
        let seen = self.sockets.get_mut(socket);
        let seen = seen.filter(|seen| seen.identity == identity);
        seen.ok_or(Refused::Replaced)?.driver = Some(driver);
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

    fn sockets(found: &[(&str, Identity)]) -> Sockets {
        let socket = |&(path, identity): &(&str, Identity)| (PathBuf::from(path), identity);
        found.iter().map(socket).collect()
    }

    #[test]
    fn a_driver_whose_socket_changed_hands_is_not_registered() {
        let [was, is] = ["/proc", "/sys"].map(|path| Identity::of(Path::new(path)).unwrap().1);
        let mut known = DriverNames::new(BTreeMap::new());
        known.see(&sockets(&[("/r", was)]));
        let changes = known.see(&sockets(&[("/r", is)]));
        assert_eq!(changes.new, [(PathBuf::from("/r"), is)]);
        assert_eq!(changes.gone.len(), 1);
        let registry = Path::new("/r");
        assert_eq!(
            known.take(registry, was, driver("/1")),
            Err(Refused::Replaced)
        );
        assert_eq!(known.take(registry, is, driver("/2")), Ok(()));
        assert_eq!(known.get("a").unwrap().socket(), Path::new("/2"));
        let changes = known.see(&Sockets::new());
        assert_eq!(changes.gone[0].driver.as_ref().unwrap().name(), "a");
        assert!(known.get("a").is_none());
    }
}
