//! Pages by HTTP: metrics and health. Everybody on the node can connect to the loopback, so a client that sends
//! slowly, or doesn't read the answer, must not keep others out.

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

/// Connections at once. One more ends the oldest, which had the most time to be answered.
const MOST: usize = 64;

/// The longest life of a connection.
const LIMIT: Duration = Duration::from_secs(5);

/// A port or a socket where pages are served.
#[derive(Debug)]
pub enum Listener {
    /// A port, for requests that name a host which is accepted.
    Tcp(TcpListener, AllowedHosts),
    /// A socket of root's alone.
    Unix(UnixListener),
}

impl Listener {
    /// Listens at a port. Requests may name its address, the loopback, and these host names.
    pub async fn tcp(address: &SocketAddr, names: &[String]) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(ListenError::of("bind", address))?;
        Ok(Self::Tcp(
            listener,
            AllowedHosts::Only(address.ip(), names.into()),
        ))
    }

    /// Returns the host names that requests to it may give.
    fn hosts(&self) -> AllowedHosts {
        match self {
            Self::Tcp(_, hosts) => hosts.clone(),
            Self::Unix(_) => AllowedHosts::Any,
        }
    }

    /// Listens on a socket of root's alone.
    pub fn unix(daemon: &Daemon, path: &Path) -> Result<Self, ListenError> {
        Ok(Self::Unix(bind_unix(daemon, path)?))
    }
}

/// A connection to a listener.
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

/// A page, as it is answered.
#[derive(Debug)]
pub struct Page {
    /// The type of its body.
    pub content_type: &'static str,
    /// Its text.
    pub body: String,
}

/// The pages of a listener.
pub trait Pages: Send + Sync + 'static {
    /// Returns the page at a path; `None` is answered with 404.
    fn page(&self, path: &str) -> impl Future<Output = Option<Page>> + Send;
}

/// Answers requests until the process ends. `of` names the pages in the log.
pub async fn serve(of: &'static str, listener: Listener, pages: impl Pages) {
    let pages = Arc::new(pages);
    let hosts = listener.hosts();
    let mut connections = Connections::new(of, listener);
    let mut under_way = VecDeque::<AbortHandle>::new();
    while let Some(Ok(stream)) = connections.next().await {
        under_way.retain(|connection| !connection.is_finished());
        if under_way.len() >= MOST
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.abort();
        }
        let (pages, hosts) = (Arc::clone(&pages), hosts.clone());
        let answered = tokio::spawn(async move {
            let answered = tokio::time::timeout(LIMIT, answer(of, stream, &hosts, &*pages)).await;
            if answered.is_err() {
                tracing::debug!("{of}: a connection was closed after {} s", LIMIT.as_secs());
            }
        });
        under_way.push_back(answered.abort_handle());
    }
}

/// Answers one request. The next one needs a connection of its own.
async fn answer(
    of: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    hosts: &AllowedHosts,
    pages: &impl Pages,
) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::new()));
        if let Err(status) = hosts.check(request.uri(), request.headers()) {
            tracing::debug!("{of}: {status}: Host: {:?}", request.headers().get(HOST));
            *response.status_mut() = status;
        } else if let Some(page) = pages.page(request.uri().path()).await {
            *response.body_mut() = Full::new(page.body.into());
            let kind = HeaderValue::from_static(page.content_type);
            response.headers_mut().insert(CONTENT_TYPE, kind);
        } else {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!("{of}: {error}");
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

    async fn get(path: &str) -> String {
        asked("localhost", path).await
    }

    async fn asked(host: &str, path: &str) -> String {
        let (mut client, server) = duplex(4096);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let hosts = AllowedHosts::Only([127, 0, 0, 1].into(), [].into());
        answer("a test", server, &hosts, &Greeting).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_page_is_told_with_its_type_and_another_is_not_found() {
        let answer = get("/greeting?loud").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("\r\ncontent-type: text/plain\r\n"),
            "{answer}"
        );
        assert!(answer.ends_with("\r\n\r\ngood day"), "{answer}");
        for path in ["/", "/greeting/", "/other"] {
            let answer = get(path).await;
            assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
        }
    }

    #[tokio::test]
    async fn another_sites_name_is_told_nothing() {
        let answer = asked("attacker.example", "/greeting").await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(!answer.contains("good day"), "{answer}");
    }
}
