//! The common part of the relays: a socket in front of another program's socket, and faults that refuse or hold calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;

use crate::node::WAIT_TIMEOUT;
use crate::wait_until;

/// The moment at which a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before the call is forwarded to the program.
    Before,
    /// After the program has answered, but before the caller gets the answer.
    After,
}

/// A fault that is set for calls.
#[derive(Debug, Clone)]
enum Fault {
    Refused(Status),
    Held(Moment),
}

/// A socket and the threads that serve it. Both end when this is dropped.
#[derive(Debug)]
pub(crate) struct RelayServer {
    pub(crate) socket: PathBuf,
    runtime: Option<Runtime>,
}

impl RelayServer {
    /// Listens on a socket and runs the server that `serve` makes for the listener.
    pub(crate) fn start<F>(socket: &Path, serve: impl FnOnce(UnixListenerStream) -> F) -> Self
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a tokio runtime");
        let _ = fs::remove_file(socket);
        let served = {
            let _inside = runtime.enter();
            let listener = UnixListener::bind(socket).expect("a relay's socket");
            serve(UnixListenerStream::new(listener))
        };
        runtime.spawn(served);
        Self {
            socket: socket.to_owned(),
            runtime: Some(runtime),
        }
    }
}

impl Drop for RelayServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Clients may stay connected.
            runtime.shutdown_background();
        }
    }
}

/// The faults that are set for calls, by the names of the calls.
#[derive(Debug)]
pub(crate) struct Faults {
    state: Mutex<State>,
    /// Notified when the faults change.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` stands for all calls without a fault of their own.
    faults: BTreeMap<Option<&'static str>, Fault>,
    /// The calls that are held now. For each call, the moment at which it was stopped.
    held: Vec<Moment>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, call: Option<&'static str>, fault: Fault) {
        self.state().faults.insert(call, fault);
        self.changed.send_replace(());
    }

    /// Answers calls with this name, or all calls, with an error until [`Self::clear_faults`].
    pub(crate) fn refuse(&self, call: Option<&'static str>, status: Status) {
        self.set(call, Fault::Refused(status));
    }

    /// Holds calls with this name until [`Self::clear_faults`]. A call that is held at the other moment continues.
    pub(crate) fn hold(&self, call: &'static str, moment: Moment) {
        self.set(Some(call), Fault::Held(moment));
    }

    /// Removes all faults and releases the calls that are held.
    pub(crate) fn clear_faults(&self) {
        self.state().faults.clear();
        self.changed.send_replace(());
    }

    /// Waits until a call is held at the given moment. If no moment is given, waits until a call is held at any moment.
    #[track_caller]
    pub(crate) fn wait_held(&self, moment: Option<Moment>) {
        wait_until("a call to be held up", WAIT_TIMEOUT, || {
            let state = self.state();
            let mut held = state.held.iter();
            held.any(|it| moment.is_none_or(|moment| *it == moment))
        });
    }

    fn fault_for(&self, call: &str) -> Option<Fault> {
        let state = self.state();
        let mut faults = state.faults.iter();
        let named = faults.find(|(name, _)| **name == Some(call));
        let fault = named.map(|(_, fault)| fault);
        fault.or_else(|| state.faults.get(&None)).cloned()
    }

    /// Returns the error with which a call is answered, if any.
    pub(crate) fn refusal(&self, call: &str) -> Option<Status> {
        match self.fault_for(call) {
            Some(Fault::Refused(status)) => Some(status),
            _ => None,
        }
    }

    /// Waits while the call is held at this moment.
    pub(crate) async fn pass(&self, call: &str, moment: Moment) {
        let mut changed = self.changed.subscribe();
        let is_held = || matches!(self.fault_for(call), Some(Fault::Held(it)) if it == moment);
        if is_held() {
            let _held = HeldCall::note(self, moment);
            while is_held() && changed.changed().await.is_ok() {}
        }
    }
}

/// A call that is held. It is also dropped when its caller gives up.
struct HeldCall<'f>(&'f Faults, Moment);

impl<'f> HeldCall<'f> {
    fn note(faults: &'f Faults, moment: Moment) -> Self {
        faults.state().held.push(moment);
        Self(faults, moment)
    }
}

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        let this = state.held.iter().position(|it| *it == self.1);
        this.map(|at| state.held.swap_remove(at));
    }
}
