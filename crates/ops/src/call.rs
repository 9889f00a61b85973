//! What every call goes through: who calls, how many do, how it ends; counted and logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::Instrument;

use crate::metrics::Metrics;

/// Goes around the services.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    metrics: Arc<Metrics>,
    /// One for each call that may be under way.
    places: Arc<Semaphore>,
    numbers: Arc<AtomicU64>,
}

impl Calls {
    pub(crate) fn new(metrics: Arc<Metrics>, most: usize) -> Self {
        Self {
            metrics,
            places: Arc::new(Semaphore::new(most)),
            numbers: Arc::default(),
        }
    }
}

impl<S> Layer<S> for Calls {
    type Service = Call<S>;

    fn layer(&self, inner: S) -> Call<S> {
        Call {
            inner,
            calls: self.clone(),
        }
    }
}

/// A service with [`Calls`] around it.
#[derive(Debug, Clone)]
pub(crate) struct Call<S> {
    inner: S,
    calls: Calls,
}

impl<S> Service<Request<Body>> for Call<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let caller = caller(&request);
        let id = self.calls.numbers.fetch_add(1, Ordering::Relaxed);
        let (uid, pid) = caller.map_or((None, None), |it| (Some(it.0), it.1));
        let span = tracing::info_span!("call", id, %method, uid, pid);
        let metrics = Arc::clone(&self.calls.metrics);
        let refused = |reason, status: Status| {
            self.calls.metrics.refused(reason);
            span.in_scope(|| tracing::warn!("refused: {}", status.message()));
            status.into_http()
        };
        // The socket's mode says so already; this holds for one that systemd made, too.
        if uid != Some(0) {
            let status = Status::permission_denied("only root may call crust_ops");
            let response = refused("caller", status);
            return Box::pin(async move { Ok(response) });
        }
        let Ok(place) = Arc::clone(&self.calls.places).try_acquire_owned() else {
            let status = Status::resource_exhausted(
                "too many calls are under way; hint: try again later, or raise max_calls",
            );
            let response = refused("busy", status);
            return Box::pin(async move { Ok(response) });
        };
        // The one that is ready is this one, not its clone (tower's `Service`).
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let answered = async move {
            let began = Instant::now();
            let answer = inner.call(request).await;
            let took = began.elapsed();
            if let Ok(response) = &answer {
                // Of an answer with a body the status comes after it, and is OK.
                let status = Status::from_header_map(response.headers());
                let code = status.as_ref().map_or(Code::Ok, Status::code);
                metrics.call(&method, code, took);
                match &status {
                    Some(status) if code != Code::Ok => {
                        tracing::warn!(?code, ?took, "{}", status.message());
                    }
                    _ => tracing::info!(?took, "done"),
                }
            }
            drop(place);
            answer
        };
        Box::pin(answered.instrument(span))
    }
}

/// The caller's uid and pid, as the kernel knows them.
fn caller(request: &Request<Body>) -> Option<(u32, Option<i32>)> {
    let peer = request.extensions().get::<UdsConnectInfo>()?.peer_cred?;
    Some((peer.uid(), peer.pid()))
}
