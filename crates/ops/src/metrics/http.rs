//! `GET /metrics`, by HTTP. On the loopback everybody on the node can ask: nobody can keep others
//! from it by asking slowly, or by not listening to the answer.

mod counting;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crust_serve::listen::Connections;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_stream::StreamExt as _;

use super::{Metrics, MetricsListener};
use crate::node::Node;
use counting::Counting;

/// Connections at once. One more ends the oldest, which had the most time to be answered.
const MOST: usize = 64;

/// What a connection has from its first byte to its last.
const LIMIT: Duration = Duration::from_secs(5);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers until the process ends.
pub(crate) async fn serve(
    listener: MetricsListener,
    metrics: Arc<Metrics>,
    node: watch::Receiver<Node>,
) {
    let volumes = Arc::new(Counting::new(move || {
        let node = node.borrow().clone();
        tokio::spawn(async move { node.counts().await.map_err(|error| error.to_string()) })
    }));
    let mut connections = Connections::new("metrics", listener);
    let mut under_way = VecDeque::<AbortHandle>::new();
    while let Some(Ok(stream)) = connections.next().await {
        under_way.retain(|connection| !connection.is_finished());
        if under_way.len() >= MOST
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.abort();
        }
        let (metrics, volumes) = (Arc::clone(&metrics), Arc::clone(&volumes));
        let answered = tokio::spawn(async move {
            let answered = tokio::time::timeout(LIMIT, answer(stream, &metrics, &volumes)).await;
            if answered.is_err() {
                tracing::debug!(
                    "metrics: a connection was closed after {} s",
                    LIMIT.as_secs()
                );
            }
        });
        under_way.push_back(answered.abort_handle());
    }
}

/// One request, for the next one can have a connection of its own.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    metrics: &Metrics,
    volumes: &Counting,
) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::new()));
        if request.uri().path() != "/metrics" {
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok::<_, Infallible>(response);
        }
        *response.body_mut() = Full::new(metrics.text(volumes.count().await).into());
        let kind = hyper::header::HeaderValue::from_static(OPENMETRICS);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Ok(response)
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!("metrics: {error}");
    }
}
