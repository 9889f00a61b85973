//! `GET /metrics`, by HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};

use super::Metrics;
use crate::listen::MetricsListener;
use crate::node::Node;

/// Scrapes at once; whoever comes then waits.
const MOST: usize = 8;

/// A connection that says nothing is closed.
const SILENCE: Duration = Duration::from_secs(10);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers until the process ends.
pub(crate) async fn serve(
    listener: MetricsListener,
    metrics: Arc<Metrics>,
    node: watch::Receiver<Node>,
) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("metrics: accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (metrics, node) = (Arc::clone(&metrics), node.clone());
        tokio::spawn(async move {
            answer(stream, &metrics, &node).await;
            drop(place);
        });
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    metrics: &Metrics,
    node: &watch::Receiver<Node>,
) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::new()));
        if request.uri().path() != "/metrics" {
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok::<_, Infallible>(response);
        }
        let node = node.borrow().clone();
        let counts = node.counts().await;
        let counts = counts
            .inspect_err(|error| tracing::warn!("metrics: {error}"))
            .ok();
        *response.body_mut() = Full::new(metrics.text(counts).into());
        let kind = hyper::header::HeaderValue::from_static(OPENMETRICS);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Ok(response)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!("metrics: {error}");
    }
}
