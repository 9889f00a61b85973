//! A layer around all services. It checks the caller, limits the number of calls, and counts and logs each call.

mod body;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{Instrument, Level};

use crate::daemon::Daemon;
use crate::errors::UnreadRefusal;
use crate::listen::Caller;

/// Receives every call, for metrics. The implementation for `()` does nothing.
pub trait CallObserver: Debug + Send + Sync {
    /// Records that a call has ended. `method` has the form `crust.v1.Runtime/RuntimeStageVolume`.
    fn call_ended(&self, method: &str, code: Code, took: Duration);

    /// Records that a call was refused before its request was read. `reason` is `caller` (not root), `busy` or
    /// `ending`.
    fn call_refused(&self, reason: &'static str);
}

impl CallObserver for () {
    fn call_ended(&self, _: &str, _: Code, _: Duration) {}

    fn call_refused(&self, _: &'static str) {}
}

/// The layer that every call passes. Its clones share the limit and the observer.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    daemon: &'static Daemon,
    observer: Arc<dyn CallObserver>,
    /// One permit for each call that may be in progress.
    permits: Arc<Semaphore>,
    limit: usize,
    next_id: Arc<AtomicU64>,
}

impl Calls {
    pub(crate) fn new(
        daemon: &'static Daemon,
        observer: Arc<dyn CallObserver>,
        max_calls: usize,
    ) -> Self {
        Self {
            daemon,
            observer,
            permits: Arc::new(Semaphore::new(max_calls)),
            limit: max_calls,
            next_id: Arc::default(),
        }
    }

    /// Refuses new calls, and waits for those in progress.
    pub(crate) async fn drain(&self) {
        self.permits.close();
        while self.permits.available_permits() < self.limit {
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
        let caller = request.extensions().get::<Caller>();
        let peer = caller.map(|caller| &caller.peer);
        let id = self.calls.next_id.fetch_add(1, Ordering::Relaxed);
        let (uid, pid) = (peer.map(|it| it.uid), peer.and_then(|it| it.pid));
        let command = peer.and_then(|it| it.command.as_deref());
        let volume = tracing::field::Empty;
        let span = tracing::info_span!("call", id, %method, uid, pid, command, volume);
        let daemon = self.calls.daemon;
        let observer = Arc::clone(&self.calls.observer);
        let refuse = |reason: UnreadRefusal| {
            self.calls.observer.call_refused(reason.label());
            let status = reason.status(daemon);
            span.in_scope(|| tracing::warn!("refused: {}", status.message()));
            status.into_http()
        };
        // Only root can connect to a socket that this process has bound, because of its mode. But systemd may have made
        // the socket, with another mode.
        if uid != Some(0) {
            let response = refuse(UnreadRefusal::Caller);
            return Box::pin(async move { Ok(response) });
        }
        // A busy daemon must not look dead to a health check.
        let is_health_check = method.starts_with("grpc.health.");
        let permit = Arc::clone(&self.calls.permits).try_acquire_owned().ok();
        if permit.is_none() && !is_health_check {
            let is_ending = self.calls.permits.is_closed();
            let response = refuse(if is_ending {
                UnreadRefusal::Ending
            } else {
                UnreadRefusal::Busy
            });
            return Box::pin(async move { Ok(response) });
        }
        // `poll_ready` was called on this service, not on its clone, which may not be ready (tower's `Service`).
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let is_daemon_method = method.starts_with(daemon.method_prefix);
        // gRPC's own methods, such as `Watch` of the health service, may never end. They don't keep a connection open.
        let connection_call = caller
            .filter(|_| is_daemon_method)
            .map(|it| it.connection.begin_call());
        let timeout = body::caller_timeout(request.headers()).filter(|_| is_daemon_method);
        // The requests of reflection are streams, which last as long as their responses. No other service has streamed
        // requests.
        let request = if method.starts_with("grpc.reflection.") {
            request
        } else {
            body::with_timeout(request)
        };
        let respond = async move {
            let name = method.rsplit('/').next().unwrap_or_default();
            let is_stream = daemon.streaming_methods.contains(&name);
            let call = ObservedCall {
                observer,
                is_quiet: daemon.quiet_methods.contains(&name),
                method: Some(method),
                started_at: Instant::now(),
                _permit: permit,
            };
            let response = inner.call(request);
            let response = match timeout {
                None => response.await,
                Some(timeout) => match tokio::time::timeout(timeout, response).await {
                    Ok(response) => response,
                    Err(_) => Ok(body::caller_deadline_exceeded().into_http()),
                },
            };
            if let Ok(response) = &response {
                // If the response has a body, its status follows in the trailers. Then the status is OK here.
                let status = Status::from_header_map(response.headers());
                call.end(&status.unwrap_or_else(|| Status::ok("")));
            }
            // A response that isn't a stream is a single message, and its call ends here. Otherwise a client that never
            // reads the message (RFC 9113, section 5.2) would keep its connection open for ever.
            match connection_call {
                Some(call) if is_stream => response.map(|response| body::hold_call(call, response)),
                _ => response,
            }
        };
        Box::pin(respond.instrument(span))
    }
}

/// Returns the level at which the end of a call is logged. `FAILED_PRECONDITION` is an ordinary result of a method that
/// is polled: for example, a volume has no statistics before its pod has started.
fn level(code: Code, is_quiet: bool) -> Level {
    match code {
        Code::Ok | Code::FailedPrecondition if is_quiet => Level::DEBUG,
        Code::Ok => Level::INFO,
        _ => Level::WARN,
    }
}

/// A call in progress. It is counted and logged once, when it ends or when its caller hangs up.
struct ObservedCall {
    observer: Arc<dyn CallObserver>,
    is_quiet: bool,
    /// `None` once the call has been recorded.
    method: Option<String>,
    started_at: Instant,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ObservedCall {
    fn end(mut self, status: &Status) {
        self.record(status);
    }

    fn record(&mut self, status: &Status) {
        let Some(method) = self.method.take() else {
            return;
        };
        let (code, took) = (status.code(), self.started_at.elapsed());
        self.observer.call_ended(&method, code, took);
        // journalctl shows only the message, so it has to name the method.
        let name = method.rsplit('/').next().unwrap_or_default();
        match (code, level(code, self.is_quiet)) {
            (Code::Ok, Level::DEBUG) => tracing::debug!(?took, "{name}: done"),
            (Code::Ok, _) => tracing::info!(?took, "{name}: done"),
            (_, Level::DEBUG) => tracing::debug!(?code, ?took, "{name}: {}", status.message()),
            _ => tracing::warn!(?code, ?took, "{name}: {}", status.message()),
        }
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        self.record(&Status::cancelled("the caller cancelled the call"));
    }
}

/// Adds the volume to the current call's log lines. The volume is logged in quotes and escaped: it can contain any
/// bytes, and must not break a line.
pub fn record_volume(volume: &dyn Debug) {
    tracing::Span::current().record("volume", tracing::field::debug(volume));
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::sync::Mutex;
    use std::task::Waker;

    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame};
    use tonic::service::Routes;

    use super::*;
    use crate::daemon::tests::DAEMON;
    use crate::listen::{ConnectionLimits, ConnectionSlots, Eviction, Peer};

    #[derive(Debug, Default)]
    struct RecordingObserver(Mutex<Vec<String>>);

    impl CallObserver for RecordingObserver {
        fn call_ended(&self, method: &str, code: Code, _: Duration) {
            self.0.lock().unwrap().push(format!("{method} {code:?}"));
        }

        fn call_refused(&self, reason: &'static str) {
            self.0.lock().unwrap().push(reason.to_owned());
        }
    }

    #[tokio::test]
    async fn a_call_without_peer_credentials_is_refused() {
        let observer = Arc::new(RecordingObserver::default());
        let calls = Calls::new(&DAEMON, Arc::clone(&observer) as _, 1);
        let request = Request::builder().uri("/ours.Node/Get");
        let request = request.body(Body::empty()).unwrap();
        let response = calls.layer(Routes::default()).call(request).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.message(), "only root may call a_daemon");
        assert_eq!(*observer.0.lock().unwrap(), ["caller"]);
    }

    #[test]
    fn failed_precondition_of_a_quiet_method_is_not_a_warning() {
        for (code, is_quiet, expected) in [
            (Code::Ok, false, Level::INFO),
            (Code::Ok, true, Level::DEBUG),
            (Code::FailedPrecondition, true, Level::DEBUG),
            (Code::FailedPrecondition, false, Level::WARN),
            (Code::NotFound, true, Level::WARN),
            (Code::Internal, true, Level::WARN),
            (Code::Cancelled, true, Level::WARN),
        ] {
            assert_eq!(level(code, is_quiet), expected, "{code:?} {is_quiet}");
        }
    }

    /// A service that responds to every call with a body that never ends.
    #[derive(Debug, Clone)]
    struct Endless;

    impl Service<Request<Body>> for Endless {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let frames = tokio_stream::pending::<Result<Frame<Bytes>, Status>>();
            ready(Ok(Response::new(Body::new(StreamBody::new(frames)))))
        }
    }

    #[tokio::test]
    async fn a_connection_with_an_open_stream_is_not_idle() {
        let context = &Context::from_waker(Waker::noop());
        for (method, is_kept) in [
            ("/ours.Node/Watch", true),
            ("/ours.Node/Get", false),
            ("/grpc.health.v1.Health/Watch", false),
        ] {
            let peer = Peer {
                uid: 0,
                pid: None,
                command: None,
            };
            let slots = Arc::new(ConnectionSlots::new(ConnectionLimits::new(1, None)));
            let slot = slots.take(&peer).unwrap();
            let mut request = Request::builder().uri(method).body(Body::empty()).unwrap();
            request.extensions_mut().insert(Caller {
                peer: peer.clone(),
                connection: slot.connection().clone(),
            });
            let calls = Calls::new(&DAEMON, Arc::new(()), 1);
            let response = calls.layer(Endless).call(request).await.unwrap();
            if is_kept {
                assert_eq!(
                    slots.evict(&peer, context),
                    Eviction::Impossible,
                    "{method}"
                );
                drop(response);
            }
            let eviction = slots.evict(&peer, context);
            assert_eq!(eviction, Eviction::Started(peer), "{method}");
        }
    }

    #[tokio::test]
    async fn a_dropped_call_is_counted_as_cancelled() {
        let observer = Arc::new(RecordingObserver::default());
        drop(ObservedCall {
            is_quiet: false,
            observer: Arc::clone(&observer) as _,
            method: Some("ours.Node/Get".to_owned()),
            started_at: Instant::now(),
            _permit: None,
        });
        assert_eq!(*observer.0.lock().unwrap(), ["ours.Node/Get Cancelled"]);
    }
}
