//! The process at the other end of a connection.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use tokio::net::UnixStream;

/// The process that made a connection, as the kernel recorded it at connect(2) (unix(7), `SO_PEERCRED`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// `None` if the process is neither in this process's pid namespace nor in one below it.
    pub(crate) pid: Option<i32>,
    /// `/proc/<pid>/comm`, which the process can set to anything. `None` if it couldn't be read.
    pub(crate) command: Option<Arc<str>>,
}

impl Peer {
    pub(crate) fn from_stream(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().filter(|pid| *pid > 0);
        Ok(Self {
            uid: credentials.uid(),
            pid,
            command: pid.and_then(command),
        })
    }
}

fn command(pid: i32) -> Option<Arc<str>> {
    let file = format!("/proc/{pid}/comm");
    let name = bounded::read(Path::new(&file), MAX_KERNEL_VALUE).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into())
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)?;
        if let Some(pid) = self.pid {
            write!(f, ", pid {pid}")?;
        }
        if let Some(command) = &self.command {
            write!(f, " ({command:?})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_is_displayed_without_unknown_fields() {
        let (stream, _client) = UnixStream::pair().unwrap();
        let peer = Peer::from_stream(&stream).unwrap();
        assert_eq!(peer.pid, Some(std::process::id().cast_signed()));
        assert!(peer.command.is_some(), "{peer:?}");
        let peer = Peer {
            uid: 7,
            pid: Some(9),
            command: Some("a\nb".into()),
        };
        assert_eq!(peer.to_string(), r#"uid 7, pid 9 ("a\nb")"#);
        let unknown = Peer {
            pid: None,
            command: None,
            ..peer
        };
        assert_eq!(unknown.to_string(), "uid 7");
    }
}
