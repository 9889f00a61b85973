//! What every call goes through: who calls, how many do, how it ends; counted and logged.

mod patience;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crust_state::TargetPath;
use http::{Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::Instrument;

use crate::metrics::Metrics;
use crate::status::unseen;

/// Goes around the services.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    metrics: Arc<Metrics>,
    /// One for each call that may be under way.
    places: Arc<Semaphore>,
    most: usize,
    numbers: Arc<AtomicU64>,
}

impl Calls {
    pub(crate) fn new(metrics: Arc<Metrics>, most: usize) -> Self {
        Self {
            metrics,
            places: Arc::new(Semaphore::new(most)),
            most,
            numbers: Arc::default(),
        }
    }

    /// Takes no more calls, and waits for those under way.
    pub(crate) async fn end(&self) {
        self.places.close();
        while self.places.available_permits() < self.most {
            tokio::time::sleep(Duration::from_millis(10)).await;
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
        let volume = tracing::field::Empty;
        let span = tracing::info_span!("call", id, %method, uid, pid, volume);
        let metrics = Arc::clone(&self.calls.metrics);
        let refused = |why: Unseen| {
            self.calls.metrics.refused(why.label());
            let status = why.status();
            span.in_scope(|| tracing::warn!("refused: {}", status.message()));
            status.into_http()
        };
        // The socket's mode says so already; this holds for one that systemd made, too.
        if uid != Some(0) {
            let response = refused(Unseen::Caller);
            return Box::pin(async move { Ok(response) });
        }
        // Whoever asks how it is mustn't be told that it is dead where it is busy.
        let is_about_itself = method.starts_with("grpc.health.");
        let place = Arc::clone(&self.calls.places).try_acquire_owned().ok();
        if place.is_none() && !is_about_itself {
            let is_ending = self.calls.places.is_closed();
            let response = refused(if is_ending {
                Unseen::Ending
            } else {
                Unseen::Busy
            });
            return Box::pin(async move { Ok(response) });
        }
        // The one that is ready is this one, not its clone (tower's `Service`).
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        // Of the others' calls the message may go on as long as the answer does.
        let is_ours = method.starts_with("crust.");
        let limit = patience::of_caller(request.headers()).filter(|_| is_ours);
        let request = if is_ours {
            patience::soon(request)
        } else {
            request
        };
        let answered = async move {
            let under_way = UnderWay {
                metrics,
                method: Some(method),
                began: Instant::now(),
                _place: place,
            };
            let answer = inner.call(request);
            let answer = match limit {
                None => answer.await,
                Some(limit) => match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Ok(patience::passed("the caller's").into_http()),
                },
            };
            if let Ok(response) = &answer {
                // Of an answer with a body the status comes after it, and is OK.
                let status = Status::from_header_map(response.headers());
                under_way.ended(&status.unwrap_or_else(|| Status::ok("")));
            }
            answer
        };
        Box::pin(answered.instrument(span))
    }
}

/// Why a call isn't looked at.
#[derive(Debug, Clone, Copy)]
enum Unseen {
    Caller,
    Busy,
    Ending,
}

impl Unseen {
    /// In the metrics.
    const fn label(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Busy => "busy",
            Self::Ending => "ending",
        }
    }

    fn status(self) -> Status {
        let (code, reason, message) = match self {
            Self::Caller => (
                Code::PermissionDenied,
                "CALLER",
                "only root may call crust_ops",
            ),
            Self::Busy => (
                Code::ResourceExhausted,
                "BUSY",
                "too many calls are under way; hint: try again later, or raise max_calls",
            ),
            Self::Ending => (
                Code::Unavailable,
                "ENDING",
                "crust_ops is about to end; hint: try again, once it has been started again",
            ),
        };
        unseen(code, reason, message)
    }
}

/// A call, counted and logged also where its caller doesn't wait for the end.
struct UnderWay {
    metrics: Arc<Metrics>,
    /// Until it has ended.
    method: Option<String>,
    began: Instant,
    _place: Option<OwnedSemaphorePermit>,
}

impl UnderWay {
    fn ended(mut self, status: &Status) {
        self.end(status);
    }

    fn end(&mut self, status: &Status) {
        let Some(method) = self.method.take() else {
            return;
        };
        let (code, took) = (status.code(), self.began.elapsed());
        self.metrics.call(&method, code, took);
        // The journal shows the message alone.
        let name = method.rsplit('/').next().unwrap_or_default();
        if code == Code::Ok {
            tracing::info!(?took, "{name}: done");
        } else {
            tracing::warn!(?code, ?took, "{name}: {}", status.message());
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end(&Status::cancelled("the caller didn't wait for the end"));
    }
}

/// Has the call's lines in the log name the volume.
pub(crate) fn is_about(target: &TargetPath) {
    // Of any bytes, and yet one line.
    let path = tracing::field::debug(target.as_path());
    tracing::Span::current().record("volume", path);
}

/// The caller's uid and pid, as the kernel knows them.
fn caller(request: &Request<Body>) -> Option<(u32, Option<i32>)> {
    let peer = request.extensions().get::<UdsConnectInfo>()?.peer_cred?;
    Some((peer.uid(), peer.pid()))
}
