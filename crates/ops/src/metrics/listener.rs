//! Where metrics are asked for.

use std::io;
use std::task::{Context, Poll, ready};

use crust_serve::listen::{Accept, ListenError, unix};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::DAEMON;
use crate::settings::MetricsAddress;

/// Where metrics are told.
#[derive(Debug)]
pub(crate) enum MetricsListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl MetricsListener {
    pub(crate) async fn new(address: &MetricsAddress) -> Result<Self, ListenError> {
        match address {
            MetricsAddress::Unix(path) => Ok(Self::Unix(unix(&DAEMON, path)?)),
            MetricsAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                Ok(Self::Tcp(
                    listener.map_err(ListenError::of("bind", &address))?,
                ))
            }
        }
    }
}

/// A connection to it.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl Accept for MetricsListener {
    type Io = Box<dyn Io>;

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Box<dyn Io>>> {
        Poll::Ready(Ok(match self {
            Self::Tcp(listener) => Box::new(ready!(listener.poll_accept(context))?.0),
            Self::Unix(listener) => Box::new(ready!(listener.poll_accept(context))?.0),
        }))
    }
}
