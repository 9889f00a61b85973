//! Listening sockets, bound here or passed by systemd, and the clients' connections to them.

mod activated;
mod client;
mod clients;
mod connections;
mod peer;
mod slots;
mod warnings;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crust_state::socket::{self, SocketError, SocketState, probe};
use crust_state::trust::{self, TrustError};
use rustix::fs::{Mode, fchmod};
use rustix::net::{SocketAddrUnix, bind, listen};
use tokio::net::UnixListener;

use crate::daemon::Daemon;

pub use activated::ActivatedSockets;
pub(crate) use client::{Caller, PING_INTERVAL};
pub(crate) use clients::Clients;
#[cfg(test)]
pub(crate) use clients::PREFACE;
pub use connections::{Accept, Connections};
#[cfg(test)]
pub(crate) use peer::Peer;
#[cfg(test)]
pub(crate) use slots::Eviction;
pub(crate) use slots::{ConnectionCall, ConnectionLimits, ConnectionSlots};
pub(crate) use warnings::PING_TIMEOUT;

/// The backlog of listen(2): connections that wait for accept(2).
const BACKLOG: i32 = 1024;

/// The reason why a socket can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A system call failed, or was not made because it would fail.
    #[error("{call} {address}: {source}{hint}")]
    Call {
        call: &'static str,
        /// The path of the socket, or the TCP address.
        address: String,
        source: io::Error,
        /// The next step, in the form "; hint: …". Empty without a next step.
        hint: String,
    },
    /// It is unknown whether another process listens on the socket.
    #[error(transparent)]
    Probe(#[from] SocketError),
    /// Users other than root could replace the socket by one of their own, or it is unknown whether they could.
    #[error("the directory of socket {}: {trust_error}", socket.display())]
    Directory {
        socket: PathBuf,
        trust_error: TrustError,
    },
}

impl ListenError {
    /// Returns a function that converts the error of a system call on `address`, which is the path of a socket or a
    /// TCP address.
    pub fn call<E: Into<io::Error>>(
        call: &'static str,
        address: &(impl ToString + ?Sized),
    ) -> impl FnOnce(E) -> Self {
        let address = address.to_string();
        move |source| Self::Call {
            call,
            address,
            source: source.into(),
            hint: String::new(),
        }
    }
}

/// Listens on a unix socket that only root can use (mode 0600). Creates missing directories above it. Replaces a socket
/// that an earlier process left behind, and fails if another process listens on it.
pub fn bind_unix(daemon: &Daemon, path: &Path) -> Result<UnixListener, ListenError> {
    let address = path.display();
    check_trusted_directory(path)?;
    let directory = path.parent().unwrap_or(path);
    // The directory can be the runtime's state directory, which must have this mode. The runtime may create it first.
    let mut missing = fs::DirBuilder::new();
    let made = missing.recursive(true).mode(0o700).create(directory);
    made.map_err(ListenError::call("mkdir", &directory.display()))?;
    // If two daemons start at once, the lock makes the second one find the first one listening.
    let lock =
        fs::File::open(directory).map_err(ListenError::call("open", &directory.display()))?;
    lock.lock()
        .map_err(ListenError::call("flock", &directory.display()))?;
    check_free(daemon, path)?;
    // bind(2) gives the file the mode of the socket (unix(7)), so other users can't use it at any time. The new socket
    // is renamed onto the path, so the path always exists.
    let socket = socket::new_stream().map_err(ListenError::call("socket", &address))?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(ListenError::call("fchmod", &address))?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&new);
    let new_address = SocketAddrUnix::new(&new).map_err(ListenError::call("bind", &address))?;
    bind(&socket, &new_address).map_err(ListenError::call("bind", &address))?;
    let listening = listen(&socket, BACKLOG)
        .map_err(io::Error::from)
        .and_then(|()| fs::rename(&new, path));
    if let Err(error) = listening {
        let _ = fs::remove_file(&new);
        return Err(ListenError::call("listen", &address)(error));
    }
    from_std(socket.into()).map_err(ListenError::call("listen", &address))
}

fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Checks that only root can replace a socket at this path.
pub fn check_trusted_directory(socket: &Path) -> Result<(), ListenError> {
    let directory = socket.parent().unwrap_or(socket);
    trust::check_directory(Path::new("/"), directory).map_err(|trust_error| {
        ListenError::Directory {
            socket: socket.to_owned(),
            trust_error,
        }
    })
}

/// Checks that there is nothing at the path, or a socket that no process listens on.
fn check_free(daemon: &Daemon, path: &Path) -> Result<(), ListenError> {
    let (source, hint) = match probe(path)? {
        SocketState::Missing | SocketState::Stale => return Ok(()),
        SocketState::Listening => (
            io::ErrorKind::AddrInUse,
            format!("; hint: stop the other {} that is running", daemon.name),
        ),
        SocketState::NotAStreamSocket => (
            io::ErrorKind::AlreadyExists,
            "; hint: remove the file, which isn't a stream socket, or configure another path"
                .to_owned(),
        ),
    };
    Err(ListenError::Call {
        call: "bind",
        address: path.display().to_string(),
        source: source.into(),
        hint,
    })
}
