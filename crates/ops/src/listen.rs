//! Sockets: made here, or given by systemd.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use listenfd::ListenFd;
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::settings::MetricsAddress;

/// Connections that wait to be taken.
const BACKLOG: i32 = 1024;

/// A socket can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{call} {place}: {source}{hint}")]
pub(crate) struct ListenError {
    call: &'static str,
    place: String,
    source: io::Error,
    hint: &'static str,
}

fn failed<E: Into<io::Error>>(
    call: &'static str,
    place: &(impl ToString + ?Sized),
) -> impl FnOnce(E) -> ListenError {
    let place = place.to_string();
    move |source| ListenError {
        call,
        place,
        source: source.into(),
        hint: "",
    }
}

/// Listens on a socket of root's alone, mode 0600. What a process that ended left there is replaced.
pub(crate) fn unix(path: &Path) -> Result<UnixListener, ListenError> {
    let place = path.display();
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed("mkdir", &directory.display()))?;
    }
    refuse_others(path)?;
    // A socket's name gets the mode that the socket has (unix(7)), so it is never another's to use;
    // and the place is never empty, because the new one is renamed onto it.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(failed("socket", &place))?;
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

fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// What is there has to be a socket that nobody listens on any more.
fn refuse_others(path: &Path) -> Result<(), ListenError> {
    let place = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("lstat", &place)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError {
                call: "bind",
                place: place.to_string(),
                source: io::ErrorKind::AlreadyExists.into(),
                hint: "; hint: it isn't a socket; name another place or remove it",
            });
        }
        Ok(_) => {}
    }
    if StdUnixStream::connect(path).is_ok() {
        return Err(ListenError {
            call: "bind",
            place: place.to_string(),
            source: io::ErrorKind::AddrInUse.into(),
            hint: "; hint: does another crust_ops run?",
        });
    }
    Ok(())
}

/// The sockets that systemd listens on for us (`sd_listen_fds(3)`), by the names that their unit
/// gives them (`FileDescriptorName=`), which is its own, `crust_ops.socket`, where it doesn't say.
pub(crate) struct Activated {
    fds: ListenFd,
    names: Vec<String>,
}

impl Activated {
    /// Takes them. To be called once, at first.
    pub(crate) fn take() -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let fds = ListenFd::from_env();
        let names = names.split(':');
        let names = names.map(|name| name.strip_suffix(".socket").unwrap_or(name));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.truncate(fds.len());
        Self { fds, names }
    }

    /// The one of this name, or else one made at `path`.
    pub(crate) fn or_unix(&mut self, name: &str, path: &Path) -> Result<UnixListener, ListenError> {
        let Some(at) = self.names.iter().position(|given| given == name) else {
            return unix(path);
        };
        self.names[at].clear();
        let place = format!("on systemd's {name}");
        let given = self.fds.take_unix_listener(at);
        let given = given.map_err(failed::<io::Error>("listen", &place))?;
        let given = given.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        given.and_then(from_std).map_err(failed("listen", &place))
    }

    /// The names of those that nobody took.
    pub(crate) fn left(&self) -> impl Iterator<Item = &String> {
        self.names.iter().filter(|name| !name.is_empty())
    }
}

/// Where metrics are told.
#[derive(Debug)]
pub(crate) enum MetricsListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection to it.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

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

    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}
