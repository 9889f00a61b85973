//! The state of a Unix socket at a path.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crust_blockfs::bounded;

#[derive(Debug, thiserror::Error)]
#[error("{call} {}: {source}", path.display())]
pub struct SocketError {
    /// The name of the system call.
    pub call: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// The state of the path of a stream socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// The path doesn't exist.
    Missing,
    /// No process listens on the socket any more.
    Stale,
    /// A process listens on the socket.
    Listening,
    /// The path isn't a stream socket.
    NotAStreamSocket,
}

/// Determines the state of the path of a stream socket, by connecting to it. Doesn't block.
pub fn probe(path: &Path) -> Result<SocketState, SocketError> {
    let failed = |call, source| SocketError {
        call,
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SocketState::Missing),
        Err(error) => return Err(failed("lstat", error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Ok(SocketState::NotAStreamSocket);
        }
        Ok(_) => {}
    }
    let socket = new_stream().map_err(|errno| failed("socket", errno.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| failed("connect", errno.into()))?;
    match connect(&socket, &address) {
        // EAGAIN: the queue of connections is full, so a process listens, but is stopped or slow.
        Ok(()) | Err(Errno::AGAIN) => Ok(SocketState::Listening),
        Err(Errno::CONNREFUSED) => Ok(SocketState::Stale),
        Err(Errno::NOENT) => Ok(SocketState::Missing),
        Err(Errno::PROTOTYPE) => Ok(SocketState::NotAStreamSocket),
        Err(errno) => Err(failed("connect", errno.into())),
    }
}

/// The size limit in bytes of `/proc/net/unix`, which has a line for each socket of the network namespace.
const MAX_TABLE_BYTES: u64 = 64 * 1024 * 1024;

/// Returns whether a process in this network namespace listens on a stream socket that was bound to this path.
///
/// Unlike [`probe`], this doesn't connect, which would make systemd start the service of an activated socket. A socket
/// that was renamed to the path isn't found.
#[must_use]
pub fn has_listener(path: &Path) -> bool {
    let table = bounded::read(Path::new("/proc/net/unix"), MAX_TABLE_BYTES);
    table.is_ok_and(|table| lists_listener(&table, path))
}

/// Searches the content of `/proc/net/unix`, whose lines are `Num RefCount Protocol Flags Type St Inode Path`
/// (`net/unix/af_unix.c`).
fn lists_listener(table: &[u8], path: &Path) -> bool {
    const STREAM: &[u8] = b"0001";
    /// The flag `__SO_ACCEPTCON`.
    const LISTENS: &[u8] = b"00010000";
    let mut lines = table.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let fields = line
            .split(|byte| *byte == b' ')
            .filter(|field| !field.is_empty());
        let fields: Vec<&[u8]> = fields.take(6).collect();
        let is_listener = matches!(fields[..], [_, _, _, LISTENS, STREAM, _]);
        // The path may contain spaces.
        let bound = line
            .iter()
            .position(|byte| *byte == b'/')
            .map(|at| &line[at..]);
        is_listener && bound == Some(path.as_os_str().as_bytes())
    })
}

/// Creates a non-blocking stream socket.
pub fn new_stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener as StdListener};

    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn the_state_of_each_kind_of_path_is_determined() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        let found = |name: &str| probe(&at(name)).unwrap();
        assert_eq!(found("none"), SocketState::Missing);
        fs::write(at("file"), "").unwrap();
        assert_eq!(found("file"), SocketState::NotAStreamSocket);
        let datagram = UnixDatagram::bind(at("datagram")).unwrap();
        assert_eq!(found("datagram"), SocketState::NotAStreamSocket);
        let listener = StdListener::bind(at("socket")).unwrap();
        assert_eq!(found("socket"), SocketState::Listening);
        drop((listener, datagram));
        assert_eq!(found("socket"), SocketState::Stale);
    }

    #[test]
    fn a_listener_is_found_by_the_path_that_it_was_bound_to() {
        let temporary = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        let listener = StdListener::bind(at("socket")).unwrap();
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        assert!(has_listener(&at("socket")));
        assert!(!has_listener(&at("datagram")) && !has_listener(&at("sock")));
        let _client = std::os::unix::net::UnixStream::connect(at("socket")).unwrap();
        drop(listener);
        assert!(!has_listener(&at("socket")));
    }

    /// A blocking connect would wait forever here.
    #[test]
    fn a_listener_with_a_full_queue_is_found() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("socket");
        let socket = new_stream().unwrap();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 0).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let mut waiting = Vec::new();
        loop {
            let client = new_stream().unwrap();
            match connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(errno) => break assert_eq!(errno, Errno::AGAIN),
            }
        }
        assert_eq!(probe(&path).unwrap(), SocketState::Listening);
    }
}
