//! HTTP pages: metrics and health. Every process on the node can connect to the loopback address, so a client that
//! sends slowly or doesn't read the response must not keep others out.

mod host;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::AbortHandle;
use tokio_stream::StreamExt as _;

use crate::daemon::Daemon;
use crate::listen::{Accept, Connections, ListenError, bind_unix};

pub use host::{AllowedHosts, is_host_name};

/// The maximum number of open connections. A further connection closes the oldest one, which has had the most time to
/// finish.
const MAX_CONNECTIONS: usize = 64;

/// The time after which a connection is closed.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// A TCP port or a unix socket where pages are served.
#[derive(Debug)]
pub enum Listener {
    /// A port, for requests to one of the allowed hosts.
    Tcp(TcpListener, AllowedHosts),
    /// A socket that only root can use.
    Unix(UnixListener),
}

impl Listener {
    /// Listens on a TCP address. Requests may be addressed to it, to the loopback, and to the host names in `names`.
    pub async fn tcp(address: &SocketAddr, names: &[String]) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(ListenError::call("bind", address))?;
        Ok(Self::Tcp(
            listener,
            AllowedHosts::Only(address.ip(), names.into()),
        ))
    }

    /// Returns the hosts that requests may be addressed to.
    fn hosts(&self) -> AllowedHosts {
        match self {
            Self::Tcp(_, hosts) => hosts.clone(),
            Self::Unix(_) => AllowedHosts::Any,
        }
    }

    /// Listens on a unix socket that only root can use.
    pub fn unix(daemon: &Daemon, path: &Path) -> Result<Self, ListenError> {
        Ok(Self::Unix(bind_unix(daemon, path)?))
    }
}

/// A connection to a [`Listener`].
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

/// A page that is sent with status 200.
#[derive(Debug)]
pub struct Page {
    pub content_type: &'static str,
    pub body: String,
}

/// The pages that a listener serves.
pub trait Pages: Send + Sync + 'static {
    /// Returns the page at a path, or `None` for status 404.
    fn page(&self, path: &str) -> impl Future<Output = Option<Page>> + Send;
}

/// Serves pages until the process ends. `name` is the name of the pages in the log.
pub async fn serve(name: &'static str, listener: Listener, pages: impl Pages) {
    let pages = Arc::new(pages);
    let hosts = listener.hosts();
    let mut connections = Connections::new(name, listener);
    let mut open = VecDeque::<AbortHandle>::new();
    while let Some(Ok(stream)) = connections.next().await {
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let (pages, hosts) = (Arc::clone(&pages), hosts.clone());
        let connection = tokio::spawn(async move {
            let served = serve_connection(name, stream, &hosts, &*pages);
            if tokio::time::timeout(CONNECTION_TIMEOUT, served)
                .await
                .is_err()
            {
                let seconds = CONNECTION_TIMEOUT.as_secs();
                tracing::debug!("{name}: closed a connection after {seconds} s");
            }
        });
        open.push_back(connection.abort_handle());
    }
}

/// Responds to the one request of a connection.
async fn serve_connection(
    name: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    hosts: &AllowedHosts,
    pages: &impl Pages,
) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::new()));
        if let Err(status) = hosts.check(request.uri(), request.headers()) {
            tracing::debug!(
                "{name}: refused a request with {status}: Host: {:?}",
                request.headers().get(HOST)
            );
            *response.status_mut() = status;
        } else if let Some(page) = pages.page(request.uri().path()).await {
            *response.body_mut() = Full::new(page.body.into());
            let content_type = HeaderValue::from_static(page.content_type);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
        } else {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!("{name}: a connection failed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    struct Greeting;

    impl Pages for Greeting {
        async fn page(&self, path: &str) -> Option<Page> {
            (path == "/greeting").then(|| Page {
                content_type: "text/plain",
                body: "good day".to_owned(),
            })
        }
    }

    async fn get(host: &str, path: &str) -> String {
        let (mut client, server) = duplex(4096);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let hosts = AllowedHosts::Only([127, 0, 0, 1].into(), [].into());
        serve_connection("a test", server, &hosts, &Greeting).await;
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn a_page_has_its_content_type_and_another_path_is_not_found() {
        let response = get("localhost", "/greeting?loud").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(
            response.contains("\r\ncontent-type: text/plain\r\n"),
            "{response}"
        );
        assert!(response.ends_with("\r\n\r\ngood day"), "{response}");
        for path in ["/", "/greeting/", "/other"] {
            let response = get("localhost", path).await;
            assert!(response.starts_with("HTTP/1.1 404 "), "{path}: {response}");
        }
    }

    #[tokio::test]
    async fn a_request_for_another_host_is_misdirected() {
        let response = get("attacker.example", "/greeting").await;
        assert!(response.starts_with("HTTP/1.1 421 "), "{response}");
        assert!(!response.contains("good day"), "{response}");
    }
}
