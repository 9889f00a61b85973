//! Sockets: made here, or given by systemd; and whoever comes to them.

mod activated;
mod connections;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crust_state::trust::{self, Flaw};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use tokio::net::{TcpListener, UnixListener};

use crate::settings::MetricsAddress;

pub(crate) use activated::Activated;
pub(crate) use connections::{Connections, MetricsListener};

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;

/// A socket can't be listened on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// A call failed, or would have.
    #[error("{call} {place}: {source}{hint}")]
    Call {
        call: &'static str,
        place: String,
        source: io::Error,
        hint: String,
    },
    /// Others than root could put their own socket in its place.
    #[error("the directory of socket {}: {flaw}", socket.display())]
    Directory { socket: PathBuf, flaw: Flaw },
}

fn failed<E: Into<io::Error>>(
    call: &'static str,
    place: &(impl ToString + ?Sized),
) -> impl FnOnce(E) -> ListenError {
    let place = place.to_string();
    move |source| ListenError::Call {
        call,
        place,
        source: source.into(),
        hint: String::new(),
    }
}

/// Listens on a socket of root's alone, mode 0600. What a process that ended left there is replaced.
pub(crate) fn unix(path: &Path) -> Result<UnixListener, ListenError> {
    let place = path.display();
    trusted_directory(path)?;
    let directory = path.parent().unwrap_or(path);
    // Root's alone, as the runtime's state directory has to be, whoever of the two is first.
    let mut missing = fs::DirBuilder::new();
    let made = missing.recursive(true).mode(0o700).create(directory);
    made.map_err(failed("mkdir", &directory.display()))?;
    // Of two that start at once, one looks when the other listens.
    let turn = fs::File::open(directory).map_err(failed("open", &directory.display()))?;
    turn.lock().map_err(failed("flock", &directory.display()))?;
    refuse_others(path)?;
    // A socket's name gets the mode that the socket has (unix(7)), so it is never another's to use;
    // and the place is never empty, because the new one is renamed onto it.
    let socket = stream_socket().map_err(failed("socket", &place))?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod", &place))?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&new);
    let address = SocketAddrUnix::new(&new).map_err(failed("bind", &place))?;
    bind(&socket, &address).map_err(failed("bind", &place))?;
    let named = listen(&socket, BACKLOG)
        .map_err(io::Error::from)
        .and_then(|()| fs::rename(&new, path));
    if let Err(error) = named {
        let _ = fs::remove_file(&new);
        return Err(failed("listen", &place)(error));
    }
    from_std(socket.into()).map_err(failed("listen", &place))
}

fn stream_socket() -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Refuses a socket where others than root could replace it.
pub(crate) fn trusted_directory(socket: &Path) -> Result<(), ListenError> {
    let directory = socket.parent().unwrap_or(socket);
    trust::directory(Path::new("/"), directory).map_err(|flaw| ListenError::Directory {
        socket: socket.to_owned(),
        flaw,
    })
}

/// Who is where a socket is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupant {
    Nobody,
    /// A socket that nobody listens on any more.
    Left,
    Listener,
    /// No stream socket.
    Other,
}

/// Looks who is there.
pub(crate) fn occupant(path: &Path) -> Result<Occupant, ListenError> {
    let place = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nobody),
        Err(error) => return Err(failed("lstat", &place)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Ok(Occupant::Other),
        Ok(_) => {}
    }
    let socket = stream_socket().map_err(failed("socket", &place))?;
    let address = SocketAddrUnix::new(path).map_err(failed("connect", &place))?;
    match connect(&socket, &address) {
        // As many as it takes wait already: somebody listens, who is stopped or slow.
        Ok(()) | Err(Errno::AGAIN) => Ok(Occupant::Listener),
        Err(Errno::CONNREFUSED) => Ok(Occupant::Left),
        Err(Errno::NOENT) => Ok(Occupant::Nobody),
        Err(Errno::PROTOTYPE) => Ok(Occupant::Other),
        Err(errno) => Err(failed("connect", &place)(errno)),
    }
}

/// What is there has to be a socket that nobody listens on any more.
fn refuse_others(path: &Path) -> Result<(), ListenError> {
    let (source, hint) = match occupant(path)? {
        Occupant::Nobody | Occupant::Left => return Ok(()),
        Occupant::Listener => (
            io::ErrorKind::AddrInUse,
            "; hint: does another crust_ops run?",
        ),
        Occupant::Other => (
            io::ErrorKind::AlreadyExists,
            "; hint: it isn't a socket of that kind; name another place or remove it",
        ),
    };
    Err(ListenError::Call {
        call: "bind",
        place: path.display().to_string(),
        source: source.into(),
        hint: hint.to_owned(),
    })
}

impl MetricsListener {
    pub(crate) async fn new(address: &MetricsAddress) -> Result<Self, ListenError> {
        match address {
            MetricsAddress::Unix(path) => Ok(Self::Unix(unix(path)?)),
            MetricsAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                Ok(Self::Tcp(listener.map_err(failed("bind", &address))?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener as StdListener};

    use super::*;

    #[test]
    fn whoever_is_there_is_told_apart() {
        let lab = tempfile::tempdir().unwrap();
        let at = |name: &str| lab.path().join(name);
        let found = |name: &str| occupant(&at(name)).unwrap();
        assert_eq!(found("none"), Occupant::Nobody);
        fs::write(at("file"), "").unwrap();
        assert_eq!(found("file"), Occupant::Other);
        let datagram = UnixDatagram::bind(at("datagram")).unwrap();
        assert_eq!(found("datagram"), Occupant::Other);
        let listener = StdListener::bind(at("socket")).unwrap();
        assert_eq!(found("socket"), Occupant::Listener);
        drop((listener, datagram));
        assert_eq!(found("socket"), Occupant::Left);
    }

    /// With a connect that waits this would have no end.
    #[test]
    fn a_listener_that_takes_nobody_is_still_one() {
        let lab = tempfile::tempdir().unwrap();
        let path = lab.path().join("socket");
        let socket = stream_socket().unwrap();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 0).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let mut waiting = Vec::new();
        loop {
            let client = stream_socket().unwrap();
            match connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(errno) => break assert_eq!(errno, Errno::AGAIN),
            }
        }
        assert_eq!(occupant(&path).unwrap(), Occupant::Listener);
    }
}
