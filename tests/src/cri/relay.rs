//! A socket before a container runtime's: what is asked there is heard, and may be refused or held up. Of a call it
//! knows the name alone.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tower::ServiceExt;

use crate::relay::{Faults, Moment, RelayServer};

/// It stands for a container runtime, and hands on what it is asked: to whoever listens at the runtime's socket by
/// then.
#[derive(Debug)]
pub struct CriRelay {
    server: RelayServer,
    shared: Arc<Shared>,
}

impl CriRelay {
    /// One that listens there, before a runtime that needn't be there yet.
    ///
    /// # Panics
    ///
    /// When it can't listen.
    pub fn start(socket: &Path, before: &Path) -> Self {
        let shared = Arc::new(Shared {
            heard: Mutex::default(),
            faults: Faults::new(),
        });
        let server = RelayServer::start(socket, |listener| {
            let endpoint = Endpoint::from_shared(format!("unix:{}", before.display()));
            let service = RelayService {
                shared: Arc::clone(&shared),
                channel: endpoint.expect("a socket's path").connect_lazy(),
            };
            Server::builder()
                .add_service(RuntimeService(service.clone()))
                .add_service(ImageService(service))
                .serve_with_incoming(listener)
        });
        Self { server, shared }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.server.socket
    }

    /// How often this was asked: `RunPodSandbox`.
    pub fn count(&self, call: &str) -> usize {
        let heard = self.shared.heard();
        heard.iter().filter(|it| *it == call).count()
    }

    /// What changes a pod and was asked, the last last.
    pub fn steps(&self) -> Vec<String> {
        const CHANGES: [&str; 4] = ["Run", "Create", "St", "Remove"];
        let is_change = |call: &&String| {
            let mut changes = CHANGES.iter();
            changes.any(|it| call.starts_with(it)) && *call != "Status"
        };
        let heard = self.shared.heard();
        heard.iter().filter(is_change).cloned().collect()
    }

    /// Forgets what was asked.
    pub fn clear_requests(&self) {
        self.shared.heard().clear();
    }

    /// Answers each such call by an error, and the runtime hears nothing of it: until [`Self::clear_faults`].
    pub fn refuse(&self, call: &'static str, status: Status) {
        self.shared.faults.refuse(Some(call), status);
    }

    /// The same with all calls.
    pub fn refuse_all(&self, status: Status) {
        self.shared.faults.refuse(None, status);
    }

    /// Holds up each such call, until [`Self::clear_faults`].
    pub fn hold(&self, call: &'static str, moment: Moment) {
        self.shared.faults.hold(call, moment);
    }

    /// Waits until a call is held up.
    ///
    /// # Panics
    ///
    /// When none is for long.
    #[track_caller]
    pub fn wait_held(&self) {
        self.shared.faults.wait_held(None);
    }

    /// Lets all calls go on.
    pub fn clear_faults(&self) {
        self.shared.faults.clear_faults();
    }
}

#[derive(Debug)]
struct Shared {
    heard: Mutex<Vec<String>>,
    faults: Faults,
}

impl Shared {
    fn heard(&self) -> MutexGuard<'_, Vec<String>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone)]
struct RelayService {
    shared: Arc<Shared>,
    channel: Channel,
}

impl RelayService {
    async fn forward(
        self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Infallible> {
        // /runtime.v1.RuntimeService/RunPodSandbox
        let path = request.uri().path().to_owned();
        let call = path.rsplit('/').next().unwrap_or_default();
        self.shared.heard().push(call.to_owned());
        let faults = &self.shared.faults;
        if let Some(status) = faults.refusal(call) {
            return Ok(status.into_http());
        }
        faults.pass(call, Moment::Before).await;
        // Of a call with one answer the head comes when it is done.
        let answer = self.channel.oneshot(request).await;
        faults.pass(call, Moment::After).await;
        Ok(answer.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
    }
}

macro_rules! forward_calls {
    ($($service:ident $name:literal)+) => {$(
        #[derive(Debug, Clone)]
        struct $service(RelayService);

        impl NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<Self::Response, Infallible>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                Box::pin(self.0.clone().forward(request))
            }
        }
    )+};
}

forward_calls! {
    RuntimeService "runtime.v1.RuntimeService"
    ImageService "runtime.v1.ImageService"
}
