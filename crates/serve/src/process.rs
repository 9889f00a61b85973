//! The daemon's process: what it runs on, and who tells it to end.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use crust_state::error_message;
use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log::{self, LogLevel};

/// Calls wait, and what is slow has threads of its own.
const WORKERS: usize = 2;

/// Runs a daemon with its log to its end, and returns the exit code of the process. An error is logged.
pub fn main<E>(name: &str, level: LogLevel, daemon: impl Future<Output = Result<(), E>>) -> ExitCode
where
    E: AsRef<dyn Error + Send + Sync>,
{
    log::start(level, name);
    let error = match run(daemon) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error_message(error.as_ref()),
        Err(error) => format!(
            "start the threads of the async runtime: {error}; hint: raise the limit of threads (TasksMax of a systemd unit) or of memory"
        ),
    };
    log::fatal(name, &error);
    ExitCode::FAILURE
}

/// Runs a daemon to its end.
fn run<T>(daemon: impl Future<Output = T>) -> io::Result<T> {
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(daemon);
    // Threads that wait for a device that hangs would be waited for as long.
    runtime.shutdown_background();
    Ok(ended)
}

/// Each connection and each program that runs takes some, and the soft limit is one for programs
/// that use `select(2)`.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(
            "setrlimit(RLIMIT_NOFILE): {errno}; as many descriptors as before have to do"
        );
    }
}

/// Tells systemd that whoever calls is answered from here on.
pub fn notify_ready() {
    tell_systemd(NotifyState::Ready);
}

/// Tells systemd that the process is about to end.
pub fn notify_stopping() {
    tell_systemd(NotifyState::Stopping);
}

/// Notifies systemd of a state. Does nothing if the process wasn't started by systemd.
fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("sd_notify: {error}");
    }
}

/// The signals that a daemon acts on. From its creation on they end nothing by themselves.
#[derive(Debug)]
pub struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// A signal, by what it asks of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEvent {
    /// SIGHUP: to read the configuration again.
    Reload,
    /// To end, by the signal of this name.
    Terminate(&'static str),
}

/// A signal can't be waited for.
#[derive(Debug, thiserror::Error)]
#[error("signal handler")]
pub struct SignalError(#[source] io::Error);

impl Signals {
    /// To be made before anybody can call: whoever is answered may send one.
    pub fn new() -> Result<Self, SignalError> {
        let of = |kind| signal(kind).map_err(SignalError);
        Ok(Self {
            reload: of(SignalKind::hangup())?,
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one. None is lost where that is given up.
    pub async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            _ = self.reload.recv() => SignalEvent::Reload,
            _ = self.terminate.recv() => SignalEvent::Terminate("SIGTERM"),
            _ = self.interrupt.recv() => SignalEvent::Terminate("SIGINT"),
        }
    }
}
