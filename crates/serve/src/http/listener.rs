//! Where pages are asked for.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::Hosts;
use crate::daemon::Daemon;
use crate::listen::{Accept, ListenError, unix};

/// A port or a socket.
#[derive(Debug)]
pub enum Listener {
    /// For everybody who reaches it, and names a host that is accepted.
    Tcp(TcpListener, Hosts),
    /// For root alone.
    Unix(UnixListener),
}

impl Listener {
    /// A port. Requests may name its address, the loopback, and these host names.
    pub async fn tcp(address: &SocketAddr, names: &[String]) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(ListenError::of("bind", address))?;
        Ok(Self::Tcp(listener, Hosts::Of(address.ip(), names.into())))
    }

    /// Returns the host names that requests to it may give.
    pub(super) fn hosts(&self) -> Hosts {
        match self {
            Self::Tcp(_, hosts) => hosts.clone(),
            Self::Unix(_) => Hosts::Any,
        }
    }

    /// A socket of a daemon's.
    pub fn unix(daemon: &Daemon, path: &Path) -> Result<Self, ListenError> {
        Ok(Self::Unix(unix(daemon, path)?))
    }
}

/// A connection to it.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl Accept for Listener {
    type Io = Box<dyn Io>;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Box<dyn Io>>> {
        Poll::Ready(Ok(match self {
            Self::Tcp(listener, _) => Box::new(ready!(listener.poll_accept(context))?.0),
            Self::Unix(listener) => Box::new(ready!(listener.poll_accept(context))?.0),
        }))
    }
}
