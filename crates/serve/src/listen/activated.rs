//! The sockets that systemd listens on for us (`sd_listen_fds(3)`).

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use listenfd::ListenFd;
use tokio::net::UnixListener;

use super::{ListenError, bind_unix, from_std};
use crate::daemon::{Daemon, KnownSockets};

/// Those that nobody took yet.
#[derive(Debug)]
pub struct ActivatedSockets {
    daemon: &'static Daemon,
    given: Vec<Given>,
}

/// One socket.
#[derive(Debug)]
struct Given {
    /// Empty where systemd, or who plays it, gave none.
    name: String,
    /// Whether its name is one of the daemon's.
    is_known: bool,
    listener: io::Result<StdUnixListener>,
}

impl ActivatedSockets {
    /// Takes them. To be called once, at first.
    #[expect(
        clippy::disallowed_methods,
        reason = "socket activation is by the environment (sd_listen_fds(3)), for this pid alone"
    )]
    #[must_use]
    pub fn take(daemon: &'static Daemon) -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut fds = ListenFd::from_env();
        let given = (0..fds.len()).map(|at| {
            let name = names.next().unwrap_or_default();
            let name = name.strip_suffix(".socket").unwrap_or(name).to_owned();
            let listener = fds.take_unix_listener(at);
            let listener = listener.and_then(|it| it.ok_or(io::ErrorKind::NotFound.into()));
            Given {
                is_known: daemon.sockets.names.contains(&&*name),
                name,
                listener,
            }
        });
        Self {
            daemon,
            given: given.collect(),
        }
    }

    /// Returns the socket of this name, or one without a known name that is bound to `path`, or makes one there.
    pub fn take_or_bind(&mut self, name: &str, path: &Path) -> Result<UnixListener, ListenError> {
        let named = self.given.iter().position(|given| given.name == name);
        let bound = || self.given.iter().position(|it| it.is_nameless_at(path));
        let Some(at) = named.or_else(bound) else {
            return bind_unix(self.daemon, path).map_err(|error| self.blamed(error));
        };
        let listener = self.given.remove(at).listener;
        let place = format!("on systemd's {name}");
        listener
            .and_then(from_std)
            .map_err(ListenError::of("listen", &place))
    }

    /// Those that nobody took, each as a sentence.
    pub fn unserved(&self) -> impl Iterator<Item = String> {
        let known = &self.daemon.sockets;
        self.given.iter().map(|given| given.unserved(known))
    }

    /// Adds a hint to an error "address in use" if systemd passes a socket by an unknown name: that socket may be the
    /// one that is in use.
    fn blamed(&self, mut error: ListenError) -> ListenError {
        if let ListenError::Call { source, hint, .. } = &mut error
            && source.kind() == io::ErrorKind::AddrInUse
            && let Some(given) = self.given.iter().find(|it| !it.is_known)
        {
            *hint = format!("; hint: {}", given.unserved(&self.daemon.sockets));
        }
        error
    }
}

impl Given {
    fn is_nameless_at(&self, path: &Path) -> bool {
        let address = self.listener.as_ref().ok().map(StdUnixListener::local_addr);
        let address = address.and_then(Result::ok);
        let bound = address.as_ref().and_then(|address| address.as_pathname());
        let is_same = |bound: &Path| {
            // One of them may go through a link.
            let real = |path: &Path| path.canonicalize().ok();
            bound == path || real(bound).is_some_and(|bound| Some(bound) == real(path))
        };
        !self.is_known && bound.is_some_and(is_same)
    }

    fn unserved(&self, known: &KnownSockets) -> String {
        let name = match &*self.name {
            "" => "without a name".to_owned(),
            name => format!("by the name {name:?}"),
        };
        let place = match &self.listener {
            Ok(listener) => match listener.local_addr() {
                Ok(address) => match address.as_pathname() {
                    Some(path) => path.display().to_string(),
                    None => "no path".to_owned(),
                },
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if self.is_known {
            return format!(
                "systemd passes a socket {name} ({place}), which isn't served: {}",
                known.unserved_reason
            );
        }
        let (are, names) = match known.names {
            [name] => ("is the name", (*name).to_owned()),
            names => ("are the names", names.join(" and ")),
        };
        format!(
            "systemd passes a socket {name} ({place}), which is none of ours: known {are} \
             {names} (FileDescriptorName= in its unit), and {}",
            known.setting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tests::DAEMON;

    #[test]
    fn what_is_left_is_told_with_what_is_known() {
        let given = |name: &str, is_known| Given {
            name: name.to_owned(),
            is_known,
            listener: Err(io::ErrorKind::NotFound.into()),
        };
        let activated = ActivatedSockets {
            daemon: &DAEMON,
            given: vec![given("", false), given("a_daemon", true)],
        };
        let left: Vec<String> = activated.unserved().collect();
        assert_eq!(
            left,
            [
                "systemd passes a socket without a name (entity not found), which is none of ours: \
                 known is the name a_daemon (FileDescriptorName= in its unit), and `--listen`",
                "systemd passes a socket by the name \"a_daemon\" (entity not found), which isn't \
                 served: there are two of them",
            ]
        );
    }
}
