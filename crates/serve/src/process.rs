//! The daemon's process: threads, descriptors, signals, and notifications to systemd.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use crust_state::error_message;
use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log::{self, LogLevel};

/// The number of threads of the async runtime. Calls spend their time waiting, and blocking work runs on other threads.
const WORKERS: usize = 2;

/// Starts the log, runs a daemon until it ends, and returns the exit code of the process. Logs the daemon's error.
pub fn main<E>(name: &str, level: LogLevel, daemon: impl Future<Output = Result<(), E>>) -> ExitCode
where
    E: AsRef<dyn Error + Send + Sync>,
{
    log::start(level, name);
    let error = match run(daemon) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error_message(error.as_ref()),
        Err(error) => format!(
            "cannot start the threads of the async runtime: {error}; hint: raise the limit on threads (TasksMax= of the systemd unit) or on memory"
        ),
    };
    log::fatal(name, &error);
    ExitCode::FAILURE
}

fn run<T>(daemon: impl Future<Output = T>) -> io::Result<T> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    let result = runtime.block_on(daemon);
    // Doesn't wait for blocked threads: a thread can hang as long as a device does not respond.
    runtime.shutdown_background();
    Ok(result)
}

/// Raises the soft limit on descriptors to the hard limit. Each connection and each running program needs descriptors,
/// and the default soft limit is so low only for programs that use select(2).
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(
            "setrlimit(RLIMIT_NOFILE): {errno}; continuing with the lower limit on descriptors"
        );
    }
}

/// Notifies systemd that the daemon is ready to serve calls.
pub fn notify_ready() {
    notify_systemd(NotifyState::Ready);
}

/// Notifies systemd that the daemon is shutting down.
pub fn notify_stopping() {
    notify_systemd(NotifyState::Stopping);
}

/// Does nothing if the process wasn't started by systemd.
fn notify_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("cannot notify systemd: sd_notify: {error}");
    }
}

/// A receiver for the signals that a daemon handles. Once it exists, the signals no longer end the process.
#[derive(Debug)]
pub struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// A signal that asks the daemon to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEvent {
    /// Reload the configuration (SIGHUP).
    Reload,
    /// Shut down. Has the name of the signal: `SIGTERM` or `SIGINT`.
    Terminate(&'static str),
}

#[derive(Debug, thiserror::Error)]
#[error("cannot install a signal handler")]
pub struct SignalError(#[source] io::Error);

impl Signals {
    /// Installs the signal handlers. To be called before the daemon serves calls, because a client may send a signal as
    /// soon as it has got a response.
    pub fn new() -> Result<Self, SignalError> {
        let install = |kind| signal(kind).map_err(SignalError);
        Ok(Self {
            reload: install(SignalKind::hangup())?,
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Cancel safe: no signal is lost if the future is dropped.
    pub async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            _ = self.reload.recv() => SignalEvent::Reload,
            _ = self.terminate.recv() => SignalEvent::Terminate("SIGTERM"),
            _ = self.interrupt.recv() => SignalEvent::Terminate("SIGINT"),
        }
    }
}
