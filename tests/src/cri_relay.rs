//! A relay in front of a container runtime's socket. It records the names of calls, and can refuse or hold them. It
//! does not decode the requests.

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

/// A relay to a container runtime. It forwards each call to the process that listens on the runtime's socket at that
/// moment.
#[derive(Debug)]
pub struct CriRelay {
    server: RelayServer,
    shared: Arc<RelayState>,
}

impl CriRelay {
    /// Starts a relay that listens on `socket`. The runtime's socket need not exist yet.
    pub fn start(socket: &Path, runtime: &Path) -> Self {
        let shared = Arc::new(RelayState {
            calls: Mutex::default(),
            faults: Faults::new(),
        });
        let server = RelayServer::start(socket, |listener| {
            let endpoint = Endpoint::from_shared(format!("unix:{}", runtime.display()));
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

    pub fn socket(&self) -> &Path {
        &self.server.socket
    }

    /// Returns the number of calls with this name, such as `RunPodSandbox`.
    pub fn count(&self, call: &str) -> usize {
        let calls = self.shared.calls();
        calls.iter().filter(|it| *it == call).count()
    }

    /// Returns the names of all calls that change a pod or a container, oldest first.
    pub fn steps(&self) -> Vec<String> {
        const CHANGES: [&str; 4] = ["Run", "Create", "St", "Remove"];
        let is_change = |call: &&String| {
            let mut changes = CHANGES.iter();
            changes.any(|it| call.starts_with(it)) && *call != "Status"
        };
        let calls = self.shared.calls();
        calls.iter().filter(is_change).cloned().collect()
    }

    /// Forgets the recorded calls.
    pub fn clear_requests(&self) {
        self.shared.calls().clear();
    }

    /// Answers calls with this name with an error, without forwarding them, until [`Self::clear_faults`].
    pub fn refuse(&self, call: &'static str, status: Status) {
        self.shared.faults.refuse(Some(call), status);
    }

    /// Answers all calls with an error, without forwarding them, until [`Self::clear_faults`].
    pub fn refuse_all(&self, status: Status) {
        self.shared.faults.refuse(None, status);
    }

    /// Holds calls with this name until [`Self::clear_faults`].
    pub fn hold(&self, call: &'static str, moment: Moment) {
        self.shared.faults.hold(call, moment);
    }

    /// Waits until a call is held.
    #[track_caller]
    pub fn wait_held(&self) {
        self.shared.faults.wait_held(None);
    }

    /// Removes all faults and releases the calls that are held.
    pub fn clear_faults(&self) {
        self.shared.faults.clear_faults();
    }
}

#[derive(Debug)]
struct RelayState {
    calls: Mutex<Vec<String>>,
    faults: Faults,
}

impl RelayState {
    fn calls(&self) -> MutexGuard<'_, Vec<String>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone)]
struct RelayService {
    shared: Arc<RelayState>,
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
        self.shared.calls().push(call.to_owned());
        let faults = &self.shared.faults;
        if let Some(status) = faults.refusal(call) {
            return Ok(status.into_http());
        }
        faults.pass(call, Moment::Before).await;
        // The head of a unary call's response arrives when the call is done.
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
