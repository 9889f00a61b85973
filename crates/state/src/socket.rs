//! Unix sockets, by their paths.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crust_blockfs::bounded;

/// It can't be told who is there.
#[derive(Debug, thiserror::Error)]
#[error("{call} {}: {source}", path.display())]
pub struct SocketError {
    /// The call.
    pub call: &'static str,
    /// The socket.
    pub path: PathBuf,
    /// The error.
    pub source: io::Error,
}

/// The occupant of a socket's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupant {
    /// There is nothing.
    Nobody,
    /// A socket that nobody listens on any more.
    Left,
    /// A socket that somebody listens on.
    Listener,
    /// No stream socket.
    Other,
}

/// Looks who is there.
pub fn occupant(path: &Path) -> Result<Occupant, SocketError> {
    let failed = |call, source| SocketError {
        call,
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nobody),
        Err(error) => return Err(failed("lstat", error)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Ok(Occupant::Other),
        Ok(_) => {}
    }
    let socket = stream().map_err(|errno| failed("socket", errno.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| failed("connect", errno.into()))?;
    match connect(&socket, &address) {
        // As many as it takes wait already: somebody listens, who is stopped or slow.
        Ok(()) | Err(Errno::AGAIN) => Ok(Occupant::Listener),
        Err(Errno::CONNREFUSED) => Ok(Occupant::Left),
        Err(Errno::NOENT) => Ok(Occupant::Nobody),
        Err(Errno::PROTOTYPE) => Ok(Occupant::Other),
        Err(errno) => Err(failed("connect", errno.into())),
    }
}

/// The size limit of a table with a line for each socket of a network namespace, in bytes.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// Whether somebody in this network namespace listens on a stream socket that was bound to this path: who
/// connects to find that out has systemd start the service that the socket is for. One that has got its
/// path by a rename isn't known by that.
#[must_use]
pub fn is_listed(path: &Path) -> bool {
    bounded::read(Path::new("/proc/net/unix"), MOST_BYTES).is_ok_and(|table| lists(&table, path))
}

/// `Num RefCount Protocol Flags Type St Inode Path`, as `net/unix/af_unix.c` writes it.
fn lists(table: &[u8], path: &Path) -> bool {
    const STREAM: &[u8] = b"0001";
    /// `__SO_ACCEPTCON`
    const LISTENS: &[u8] = b"00010000";
    let mut lines = table.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let fields = line
            .split(|byte| *byte == b' ')
            .filter(|field| !field.is_empty());
        let fields: Vec<&[u8]> = fields.take(6).collect();
        let is_listener = matches!(fields[..], [_, _, _, LISTENS, STREAM, _]);
        // A path may hold blanks.
        let bound = line
            .iter()
            .position(|byte| *byte == b'/')
            .map(|at| &line[at..]);
        is_listener && bound == Some(path.as_os_str().as_bytes())
    })
}

/// A new stream socket, which waits for nobody.
pub fn stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener as StdListener};

    use rustix::net::{bind, listen};

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

    #[test]
    fn a_listener_is_listed_by_the_path_that_it_was_bound_to() {
        let lab = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        let at = |name: &str| lab.path().join(name);
        let listener = StdListener::bind(at("socket")).unwrap();
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        assert!(is_listed(&at("socket")));
        assert!(!is_listed(&at("datagram")) && !is_listed(&at("sock")));
        let _client = std::os::unix::net::UnixStream::connect(at("socket")).unwrap();
        drop(listener);
        assert!(!is_listed(&at("socket")));
    }

    /// With a connect that waits this would have no end.
    #[test]
    fn a_listener_that_takes_nobody_is_still_one() {
        let lab = tempfile::tempdir().unwrap();
        let path = lab.path().join("socket");
        let socket = stream().unwrap();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 0).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let mut waiting = Vec::new();
        loop {
            let client = stream().unwrap();
            match connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(errno) => break assert_eq!(errno, Errno::AGAIN),
            }
        }
        assert_eq!(occupant(&path).unwrap(), Occupant::Listener);
    }
}
