//! Sockets: made here, or given by systemd; and whoever comes to them.

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
pub(crate) use client::{Caller, KEEP_ALIVE};
pub(crate) use clients::Clients;
#[cfg(test)]
pub(crate) use clients::PREFACE;
pub use connections::{Accept, Connections};
#[cfg(test)]
pub(crate) use peer::Peer;
#[cfg(test)]
pub(crate) use slots::Room;
pub(crate) use slots::{CallUnderWay, ConnectionLimits, ConnectionSlots};
pub(crate) use warnings::ACKNOWLEDGEMENT;

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;

/// A socket can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A call failed, or would have.
    #[error("{call} {place}: {source}{hint}")]
    Call {
        /// The call.
        call: &'static str,
        /// The path or address.
        place: String,
        /// The error of the call.
        source: io::Error,
        /// The next step, as the sentence's end: "; hint: …". Empty where nobody knows one.
        hint: String,
    },
    /// Whether it is free can't be told.
    #[error(transparent)]
    Occupant(#[from] SocketError),
    /// Others than root could put their own socket in its place.
    #[error("the directory of socket {}: {flaw}", socket.display())]
    Directory {
        /// The socket.
        socket: PathBuf,
        /// The part of the path that lets them, or the look at it that failed.
        flaw: TrustError,
    },
}

impl ListenError {
    /// Returns the error of a call that failed on a place.
    pub fn of<E: Into<io::Error>>(
        call: &'static str,
        place: &(impl ToString + ?Sized),
    ) -> impl FnOnce(E) -> Self {
        let place = place.to_string();
        move |source| Self::Call {
            call,
            place,
            source: source.into(),
            hint: String::new(),
        }
    }
}

/// Listens on a socket of root's alone, mode 0600. What a process that ended left there is replaced.
pub fn bind_unix(daemon: &Daemon, path: &Path) -> Result<UnixListener, ListenError> {
    let place = path.display();
    check_trusted_directory(path)?;
    let directory = path.parent().unwrap_or(path);
    // Root's alone, as the runtime's state directory has to be, whoever of the two is first.
    let mut missing = fs::DirBuilder::new();
    let made = missing.recursive(true).mode(0o700).create(directory);
    made.map_err(ListenError::of("mkdir", &directory.display()))?;
    // Of two that start at once, one looks when the other listens.
    let turn = fs::File::open(directory).map_err(ListenError::of("open", &directory.display()))?;
    turn.lock()
        .map_err(ListenError::of("flock", &directory.display()))?;
    refuse_others(daemon, path)?;
    // A socket's name gets the mode that the socket has (unix(7)), so it is never another's to use;
    // and the place is never empty, because the new one is renamed onto it.
    let socket = socket::new_stream().map_err(ListenError::of("socket", &place))?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(ListenError::of("fchmod", &place))?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&new);
    let address = SocketAddrUnix::new(&new).map_err(ListenError::of("bind", &place))?;
    bind(&socket, &address).map_err(ListenError::of("bind", &place))?;
    let named = listen(&socket, BACKLOG)
        .map_err(io::Error::from)
        .and_then(|()| fs::rename(&new, path));
    if let Err(error) = named {
        let _ = fs::remove_file(&new);
        return Err(ListenError::of("listen", &place)(error));
    }
    from_std(socket.into()).map_err(ListenError::of("listen", &place))
}

fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Refuses a socket where others than root could replace it.
pub fn check_trusted_directory(socket: &Path) -> Result<(), ListenError> {
    let directory = socket.parent().unwrap_or(socket);
    trust::check_directory(Path::new("/"), directory).map_err(|flaw| ListenError::Directory {
        socket: socket.to_owned(),
        flaw,
    })
}

/// Refuses a path where there is something else than a socket without a listener.
fn refuse_others(daemon: &Daemon, path: &Path) -> Result<(), ListenError> {
    let (source, hint) = match probe(path)? {
        SocketState::Missing | SocketState::Stale => return Ok(()),
        SocketState::Listening => (
            io::ErrorKind::AddrInUse,
            format!("; hint: does another {} run?", daemon.name),
        ),
        SocketState::NotAStreamSocket => (
            io::ErrorKind::AlreadyExists,
            "; hint: it isn't a socket of that kind; name another place or remove it".to_owned(),
        ),
    };
    Err(ListenError::Call {
        call: "bind",
        place: path.display().to_string(),
        source: source.into(),
        hint,
    })
}
