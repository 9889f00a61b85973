//! A layer around all services that checks the caller, limits the number of calls, and counts and logs each.

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
use crate::errors::RefusedUnread;
use crate::listen::Caller;

/// Is told of every call, to count them. `()` does nothing.
pub trait CallObserver: Debug + Send + Sync {
    /// A call of a method, `crust.v1.Runtime/RuntimeStageVolume`, has ended so.
    fn call_ended(&self, method: &str, code: Code, took: Duration);

    /// A call was refused unread: its `caller` may not call, or the daemon is `busy` or `ending`.
    fn call_refused(&self, reason: &'static str);
}

impl CallObserver for () {
    fn call_ended(&self, _: &str, _: Code, _: Duration) {}

    fn call_refused(&self, _: &'static str) {}
}

/// The layer that every call goes through.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    daemon: &'static Daemon,
    observer: Arc<dyn CallObserver>,
    /// One for each call that may be under way.
    permits: Arc<Semaphore>,
    most: usize,
    numbers: Arc<AtomicU64>,
}

impl Calls {
    pub(crate) fn new(
        daemon: &'static Daemon,
        observer: Arc<dyn CallObserver>,
        most: usize,
    ) -> Self {
        Self {
            daemon,
            observer,
            permits: Arc::new(Semaphore::new(most)),
            most,
            numbers: Arc::default(),
        }
    }

    /// Refuses new calls, and waits for those under way.
    pub(crate) async fn end(&self) {
        self.permits.close();
        while self.permits.available_permits() < self.most {
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
        let id = self.calls.numbers.fetch_add(1, Ordering::Relaxed);
        let (uid, pid) = (peer.map(|it| it.uid), peer.and_then(|it| it.pid));
        let command = peer.and_then(|it| it.command.as_deref());
        let volume = tracing::field::Empty;
        let span = tracing::info_span!("call", id, %method, uid, pid, command, volume);
        let daemon = self.calls.daemon;
        let observer = Arc::clone(&self.calls.observer);
        let refused = |why: RefusedUnread| {
            self.calls.observer.call_refused(why.label());
            let status = why.status(daemon);
            span.in_scope(|| tracing::warn!("refused: {}", status.message()));
            status.into_http()
        };
        // The socket's mode says so already; this holds for one that systemd made, too.
        if uid != Some(0) {
            let response = refused(RefusedUnread::Caller);
            return Box::pin(async move { Ok(response) });
        }
        // Whoever asks how it is mustn't be told that it is dead where it is busy.
        let is_about_itself = method.starts_with("grpc.health.");
        let permit = Arc::clone(&self.calls.permits).try_acquire_owned().ok();
        if permit.is_none() && !is_about_itself {
            let is_ending = self.calls.permits.is_closed();
            let response = refused(if is_ending {
                RefusedUnread::Ending
            } else {
                RefusedUnread::Busy
            });
            return Box::pin(async move { Ok(response) });
        }
        // The one that is ready is this one, not its clone (tower's `Service`).
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let is_ours = method.starts_with(daemon.method_prefix);
        // gRPC's own methods, such as health's `Watch`, may go on for ever: they keep no connection open.
        let on_connection = caller.filter(|_| is_ours).map(|it| it.connection.call());
        let limit = body::caller_timeout(request.headers()).filter(|_| is_ours);
        // Reflection is the one service whose requests are streams, which go on as long as its answers do.
        let request = if method.starts_with("grpc.reflection.") {
            request
        } else {
            body::timely(request)
        };
        let answered = async move {
            let name = method.rsplit('/').next().unwrap_or_default();
            let is_stream = daemon.streaming_methods.contains(&name);
            let under_way = UnderWay {
                observer,
                is_quiet: daemon.quiet_methods.contains(&name),
                method: Some(method),
                began: Instant::now(),
                _permit: permit,
            };
            let answer = inner.call(request);
            let answer = match limit {
                None => answer.await,
                Some(limit) => match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Ok(body::deadline_passed("the caller's").into_http()),
                },
            };
            if let Ok(response) = &answer {
                // Of an answer with a body the status comes after it, and is OK.
                let status = Status::from_header_map(response.headers());
                under_way.ended(&status.unwrap_or_else(|| Status::ok("")));
            }
            // Another answer is one message, and its call ends here: a client that never takes the message (RFC 9113,
            // section 5.2) would keep its connection open for good.
            match on_connection {
                Some(call) if is_stream => answer.map(|answer| body::streamed(call, answer)),
                _ => answer,
            }
        };
        Box::pin(answered.instrument(span))
    }
}

/// Returns the level at which the end of a call is logged. A method that is polled ordinarily answers
/// `FAILED_PRECONDITION` at first: a volume has no statistics before its pod has started.
fn level(code: Code, is_quiet: bool) -> Level {
    match code {
        Code::Ok | Code::FailedPrecondition if is_quiet => Level::DEBUG,
        Code::Ok => Level::INFO,
        _ => Level::WARN,
    }
}

/// A call, counted and logged also where its caller doesn't wait for the end.
struct UnderWay {
    observer: Arc<dyn CallObserver>,
    is_quiet: bool,
    /// Until it has ended.
    method: Option<String>,
    began: Instant,
    _permit: Option<OwnedSemaphorePermit>,
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
        self.observer.call_ended(&method, code, took);
        // The journal shows the message alone.
        let name = method.rsplit('/').next().unwrap_or_default();
        match (code, level(code, self.is_quiet)) {
            (Code::Ok, Level::DEBUG) => tracing::debug!(?took, "{name}: done"),
            (Code::Ok, _) => tracing::info!(?took, "{name}: done"),
            (_, Level::DEBUG) => tracing::debug!(?code, ?took, "{name}: {}", status.message()),
            _ => tracing::warn!(?code, ?took, "{name}: {}", status.message()),
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end(&Status::cancelled("the caller didn't wait for the end"));
    }
}

/// Has the lines of the call that is under way here name its volume in the log, in quotes: it may
/// be of any bytes, and is one line all the same.
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
    use crate::listen::{ConnectionLimits, ConnectionSlots, Peer, Room};

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<String>>);

    impl CallObserver for Heard {
        fn call_ended(&self, method: &str, code: Code, _: Duration) {
            self.0.lock().unwrap().push(format!("{method} {code:?}"));
        }

        fn call_refused(&self, reason: &'static str) {
            self.0.lock().unwrap().push(reason.to_owned());
        }
    }

    #[tokio::test]
    async fn whoever_the_kernel_does_not_know_is_refused() {
        let heard = Arc::new(Heard::default());
        let calls = Calls::new(&DAEMON, Arc::clone(&heard) as _, 1);
        let request = Request::builder().uri("/ours.Node/Get");
        let request = request.body(Body::empty()).unwrap();
        let answer = calls.layer(Routes::default()).call(request).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.message(), "only root may call a_daemon");
        assert_eq!(*heard.0.lock().unwrap(), ["caller"]);
    }

    #[test]
    fn whoever_polls_is_no_warning_where_the_answer_is_not_yet() {
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

    /// Answers every call with a body that never ends.
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
            let answer = calls.layer(Endless).call(request).await.unwrap();
            if is_kept {
                assert_eq!(slots.make_room(&peer, context), Room::None, "{method}");
                drop(answer);
            }
            let room = slots.make_room(&peer, context);
            assert_eq!(room, Room::Closing(peer), "{method}");
        }
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_counted_as_cancelled() {
        let heard = Arc::new(Heard::default());
        drop(UnderWay {
            is_quiet: false,
            observer: Arc::clone(&heard) as _,
            method: Some("ours.Node/Get".to_owned()),
            began: Instant::now(),
            _permit: None,
        });
        assert_eq!(*heard.0.lock().unwrap(), ["ours.Node/Get Cancelled"]);
    }
}
