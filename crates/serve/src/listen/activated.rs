//! Sockets that systemd listens on and passes to the daemon (`sd_listen_fds(3)`).

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use listenfd::ListenFd;
use tokio::net::UnixListener;

use super::{ListenError, bind_unix, from_std};
use crate::daemon::{Daemon, KnownSockets};

/// The sockets that systemd has passed, without those that have been taken.
#[derive(Debug)]
pub struct ActivatedSockets {
    daemon: &'static Daemon,
    sockets: Vec<ActivatedSocket>,
}

#[derive(Debug)]
struct ActivatedSocket {
    /// Without the suffix `.socket`. Empty if the process that passed the socket gave no name.
    name: String,
    /// Whether the name is in [`KnownSockets::names`].
    is_known: bool,
    listener: io::Result<StdUnixListener>,
}

impl ActivatedSockets {
    /// Takes the passed sockets from the environment. To be called once, before other descriptors are opened.
    #[expect(
        clippy::disallowed_methods,
        reason = "socket activation is by the environment (`sd_listen_fds(3)`), for this pid alone"
    )]
    #[must_use]
    pub fn take(daemon: &'static Daemon) -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut fds = ListenFd::from_env();
        let sockets = (0..fds.len()).map(|at| {
            let name = names.next().unwrap_or_default();
            let name = name.strip_suffix(".socket").unwrap_or(name).to_owned();
            let listener = fds.take_unix_listener(at);
            let listener = listener.and_then(|it| it.ok_or(io::ErrorKind::NotFound.into()));
            ActivatedSocket {
                is_known: daemon.sockets.names.contains(&&*name),
                name,
                listener,
            }
        });
        Self {
            daemon,
            sockets: sockets.collect(),
        }
    }

    /// Takes the passed socket with this name, or a passed socket without a known name that is bound to `path`. If
    /// there is neither, binds a socket to `path`.
    pub fn take_or_bind(&mut self, name: &str, path: &Path) -> Result<UnixListener, ListenError> {
        let with_name = self.sockets.iter().position(|socket| socket.name == name);
        let at_path = || self.sockets.iter().position(|it| it.is_unknown_at(path));
        let Some(at) = with_name.or_else(at_path) else {
            return bind_unix(self.daemon, path).map_err(|error| self.with_hint(error));
        };
        let listener = self.sockets.remove(at).listener;
        let address = format!("on systemd's {name}");
        listener
            .and_then(from_std)
            .map_err(ListenError::call("listen", &address))
    }

    /// Returns a warning for each passed socket that has not been taken.
    pub fn unserved(&self) -> impl Iterator<Item = String> {
        let known = &self.daemon.sockets;
        self.sockets.iter().map(|socket| socket.warning(known))
    }

    /// Adds a hint to the error "address in use" if systemd passed a socket with an unknown name, because that socket
    /// may be the one that is in use.
    fn with_hint(&self, mut error: ListenError) -> ListenError {
        if let ListenError::Call { source, hint, .. } = &mut error
            && source.kind() == io::ErrorKind::AddrInUse
            && let Some(socket) = self.sockets.iter().find(|it| !it.is_known)
        {
            *hint = format!("; hint: {}", socket.warning(&self.daemon.sockets));
        }
        error
    }
}

impl ActivatedSocket {
    /// Returns whether the socket has no known name and is bound to `path`.
    fn is_unknown_at(&self, path: &Path) -> bool {
        let address = self.listener.as_ref().ok().map(StdUnixListener::local_addr);
        let address = address.and_then(Result::ok);
        let bound = address.as_ref().and_then(|address| address.as_pathname());
        let is_same = |bound: &Path| {
            // One of the two paths may contain a symbolic link.
            let real = |path: &Path| path.canonicalize().ok();
            bound == path || real(bound).is_some_and(|bound| Some(bound) == real(path))
        };
        !self.is_known && bound.is_some_and(is_same)
    }

    fn warning(&self, known: &KnownSockets) -> String {
        let name = match &*self.name {
            "" => "without a name".to_owned(),
            name => format!("with the name {name:?}"),
        };
        let path = match &self.listener {
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
                "systemd passed a socket {name} ({path}), which is not served: {}",
                known.unserved_reason
            );
        }
        let expected = match known.names {
            [name] => format!("the name {name}"),
            names => format!("the name {}", names.join(" or ")),
        };
        format!(
            "systemd passed a socket {name} ({path}), which is not served: give it {expected} \
             (FileDescriptorName= in the socket unit), or the path in {}",
            known.setting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tests::DAEMON;

    #[test]
    fn an_unserved_socket_is_reported_with_the_expected_ones() {
        let socket = |name: &str, is_known| ActivatedSocket {
            name: name.to_owned(),
            is_known,
            listener: Err(io::ErrorKind::NotFound.into()),
        };
        let activated = ActivatedSockets {
            daemon: &DAEMON,
            sockets: vec![socket("", false), socket("a_daemon", true)],
        };
        let unserved: Vec<String> = activated.unserved().collect();
        assert_eq!(
            unserved,
            [
                "systemd passed a socket without a name (entity not found), which is not served: give it the \
                 name a_daemon (FileDescriptorName= in the socket unit), or the path in `--listen`",
                "systemd passed a socket with the name \"a_daemon\" (entity not found), which is not \
                 served: there are two of them",
            ]
        );
    }
}
