//! A socket before a container runtime's: what is asked there is heard, and may be refused or held up. Of a call it
//! knows the name alone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tower::ServiceExt;

use crate::csi::Moment;
use crate::node::PATIENCE;
use crate::wait_until;

/// It stands for a container runtime, and hands on what it is asked: to whoever listens at the runtime's socket by
/// then.
#[derive(Debug)]
pub struct CriRelay {
    socket: PathBuf,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl CriRelay {
    /// One that listens there, before a runtime that needn't be there yet.
    ///
    /// # Panics
    ///
    /// When it can't listen.
    pub fn start(socket: &Path, before: &Path) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a tokio runtime");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        });
        let _ = fs::remove_file(socket);
        let (listener, channel) = {
            let _inside = runtime.enter();
            let endpoint = Endpoint::from_shared(format!("unix:{}", before.display()));
            (
                UnixListener::bind(socket).expect("a relay's socket"),
                endpoint.expect("a socket's path").connect_lazy(),
            )
        };
        let ear = Ear {
            shared: Arc::clone(&shared),
            channel,
        };
        let serve = Server::builder()
            .add_service(RuntimeService(ear.clone()))
            .add_service(ImageService(ear))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(serve);
        Self {
            socket: socket.to_owned(),
            shared,
            runtime: Some(runtime),
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How often this was asked: `RunPodSandbox`.
    pub fn heard(&self, call: &str) -> usize {
        let state = self.shared.state();
        state.heard.iter().filter(|it| *it == call).count()
    }

    /// What changes a pod and was asked, the last last.
    pub fn steps(&self) -> Vec<String> {
        const CHANGES: [&str; 4] = ["Run", "Create", "St", "Remove"];
        let is_change = |call: &&String| {
            let mut changes = CHANGES.iter();
            changes.any(|it| call.starts_with(it)) && *call != "Status"
        };
        let state = self.shared.state();
        state.heard.iter().filter(is_change).cloned().collect()
    }

    /// Forgets what was asked.
    pub fn forget(&self) {
        self.shared.state().heard.clear();
    }

    /// Answers each such call by an error, and the runtime hears nothing of it: until [`Self::heal`].
    pub fn refuse(&self, call: &'static str, status: Status) {
        self.set(Some(call), Fault::Refused(status));
    }

    /// The same with all calls.
    pub fn refuse_all(&self, status: Status) {
        self.set(None, Fault::Refused(status));
    }

    /// Holds up each such call, until [`Self::heal`].
    pub fn hold(&self, call: &'static str, moment: Moment) {
        self.set(Some(call), Fault::Held(moment));
    }

    /// Waits until a call is held up.
    ///
    /// # Panics
    ///
    /// When none is for long.
    #[track_caller]
    pub fn wait_held(&self) {
        wait_until("a call to be held up", PATIENCE, || {
            self.shared.state().held > 0
        });
    }

    /// Lets all calls go on.
    pub fn heal(&self) {
        self.shared.state().faults.clear();
        self.shared.changed.send_replace(());
    }

    fn set(&self, call: Option<&'static str>, fault: Fault) {
        self.shared.state().faults.insert(call, fault);
        self.shared.changed.send_replace(());
    }
}

impl Drop for CriRelay {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Whoever is connected may stay so.
            runtime.shutdown_background();
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when there are other faults.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    heard: Vec<String>,
    /// By the calls' names; without one, of all others.
    faults: BTreeMap<Option<&'static str>, Fault>,
    /// How many calls are held up now.
    held: usize,
}

#[derive(Debug, Clone)]
enum Fault {
    Refused(Status),
    Held(Moment),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, call: &str) -> Option<Fault> {
        let state = self.state();
        let mut faults = state.faults.iter();
        let named = faults.find(|(name, _)| **name == Some(call));
        let fault = named.map(|(_, fault)| fault);
        fault.or_else(|| state.faults.get(&None)).cloned()
    }

    async fn pass(&self, call: &str, moment: Moment) {
        let mut changed = self.changed.subscribe();
        let is_held = || matches!(self.fault(call), Some(Fault::Held(it)) if it == moment);
        if is_held() {
            let _held = Held::note(self);
            while is_held() && changed.changed().await.is_ok() {}
        }
    }
}

/// A call that is held up; its caller may leave meanwhile.
struct Held<'s>(&'s Shared);

impl<'s> Held<'s> {
    fn note(shared: &'s Shared) -> Self {
        shared.state().held += 1;
        Self(shared)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state().held -= 1;
    }
}

#[derive(Debug, Clone)]
struct Ear {
    shared: Arc<Shared>,
    channel: Channel,
}

impl Ear {
    async fn hand_on(
        self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Infallible> {
        // /runtime.v1.RuntimeService/RunPodSandbox
        let path = request.uri().path().to_owned();
        let call = path.rsplit('/').next().unwrap_or_default();
        let shared = &self.shared;
        shared.state().heard.push(call.to_owned());
        if let Some(Fault::Refused(status)) = shared.fault(call) {
            return Ok(status.into_http());
        }
        shared.pass(call, Moment::Before).await;
        // Of a call with one answer the head comes when it is done.
        let answer = self.channel.oneshot(request).await;
        shared.pass(call, Moment::After).await;
        Ok(answer.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
    }
}

macro_rules! handed_on {
    ($($service:ident $name:literal)+) => {$(
        #[derive(Debug, Clone)]
        struct $service(Ear);

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
                Box::pin(self.0.clone().hand_on(request))
            }
        }
    )+};
}

handed_on! {
    RuntimeService "runtime.v1.RuntimeService"
    ImageService "runtime.v1.ImageService"
}
