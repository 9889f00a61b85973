//! Runs the CLI without a shell, with a fixed environment, and with limits on time and output.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crust_serve::KeyedLockGuard;
use crust_state::Digest;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::attendant::{ATTEND, ProgramExit};
use super::{CliCall, CliError};

/// The limit on the bytes that are read from each stream. An answer usually has a few hundred.
const MAX_OUTPUT: u64 = 64 * 1024;

/// The timeout, after the program has ended, for the rest of its output, which is in the pipes already, and for its
/// killed descendants, which end soon unless they hang in the kernel.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Output {
    pub(super) success: bool,
    /// The exit status in words.
    pub(super) status: String,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// Whether a stream had more than [`MAX_OUTPUT`] bytes.
    pub(super) is_too_long: bool,
}

/// Runs a program until it has ended or its caller has hung up. Returns `None` after the deadline.
///
/// `volume_lock` is held until the program and all its descendants are gone, so that only one call for each volume can
/// hang in the kernel.
pub(super) async fn run(
    runs: &CliRuns,
    call: CliCall<'_>,
    deadline: Instant,
    volume_lock: Option<KeyedLockGuard<Digest>>,
) -> Result<Option<Output>, CliError> {
    let program = call.program.to_owned();
    let failed = |source| CliError::Start {
        program: program.clone(),
        source,
    };
    let mut run = runs.begin().ok_or(CliError::Ending)?;
    let mut running = CliProcess::start(call.program, call.arguments).map_err(failed)?;
    let runs_to_completion = call.runs_to_completion;
    let (mut sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let _volume_lock = volume_lock;
        let outcome = tokio::select! {
            outcome = running.wait(deadline) => outcome,
            () = sender.closed(), if !runs_to_completion => RunOutcome::TimedOut,
            () = run.ending() => RunOutcome::DaemonEnding,
        };
        let is_gone = running.end().await;
        // Fails if the caller has hung up.
        let _ = sender.send(outcome);
        if !is_gone {
            tracing::warn!(
                "a runtime-cli, or a process that it left behind, can't be killed; hint: look for processes in state D"
            );
            let _ = running.attendant.wait().await;
        }
    });
    match receiver.await {
        Ok(RunOutcome::Exited(output)) => Ok(Some(output)),
        Ok(RunOutcome::StartFailed(error)) => Err(failed(error)),
        Ok(RunOutcome::DaemonEnding) | Err(_) => Err(CliError::Ending),
        Ok(RunOutcome::TimedOut) => Ok(None),
    }
}

/// The outcome of running a program.
enum RunOutcome {
    Exited(Output),
    StartFailed(io::Error),
    /// The deadline has passed, or the caller has hung up.
    TimedOut,
    DaemonEnding,
}

/// A running program and its attendant.
struct CliProcess {
    attendant: Child,
    /// The socket to the attendant. Closing it makes the attendant kill the program.
    socket: Option<UnixStream>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// The error of a stream with more than [`MAX_OUTPUT`] bytes.
struct OutputTooLong;

impl CliProcess {
    /// Starts the attendant, which executes the program. This process doesn't execute the program itself, because it
    /// may be on a file system that hangs.
    fn start(program: &Path, arguments: &[OsString]) -> io::Result<Self> {
        let (socket, attendants_end) = UnixStream::pair()?;
        let attendants_end = OwnedFd::from(attendants_end.into_std()?);
        rustix::io::ioctl_fionbio(&attendants_end, false)?;
        let attendant = Command::new("/proc/self/exe")
            .arg0("crust_ops")
            .arg(ATTEND)
            .arg(program)
            .arg("crust")
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::from(attendants_end))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        Ok(Self {
            attendant,
            socket: Some(socket),
            stdout: Vec::new(),
            stderr: Vec::new(),
        })
    }

    /// Reads the program's output until the program has ended.
    async fn wait(&mut self, deadline: Instant) -> RunOutcome {
        let output = read_both(
            self.attendant.stdout.take(),
            self.attendant.stderr.take(),
            &mut self.stdout,
            &mut self.stderr,
        );
        let exit = read_exit(self.socket.as_mut());
        let output_and_exit = async move {
            tokio::pin!(output, exit);
            tokio::select! {
                // The program has closed its streams, or the output is too long.
                output = &mut output => match output {
                    Ok(()) => (Ok(()), Some(exit.await)),
                    Err(OutputTooLong) => (Err(OutputTooLong), None),
                },
                // The rest of the output is in the pipes, which no process has open any more.
                exit = &mut exit => {
                    (timeout(EXIT_TIMEOUT, output).await.unwrap_or(Ok(())), Some(exit))
                }
            }
        };
        let Ok((output, exit)) = timeout_at(deadline, output_and_exit).await else {
            return RunOutcome::TimedOut;
        };
        let status = match exit {
            Some(Ok(ProgramExit::Ended(status))) => Some(status),
            Some(Ok(ProgramExit::StartFailed(error)) | Err(error)) => {
                return RunOutcome::StartFailed(error);
            }
            None => None,
        };
        RunOutcome::Exited(Output {
            success: status.is_some_and(|status| status.success()),
            status: status
                .as_ref()
                .map_or_else(String::new, ExitStatus::to_string),
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
            is_too_long: output.is_err(),
        })
    }

    /// Makes the attendant kill the program and its descendants. Returns true if they have ended in time.
    async fn end(&mut self) -> bool {
        self.socket = None;
        timeout(EXIT_TIMEOUT, self.attendant.wait()).await.is_ok()
    }
}

async fn read_exit(socket: Option<&mut UnixStream>) -> io::Result<ProgramExit> {
    let mut bytes = [0; ProgramExit::LENGTH];
    let socket = socket.ok_or(io::ErrorKind::BrokenPipe)?;
    socket.read_exact(&mut bytes).await?;
    Ok(ProgramExit::from_bytes(bytes))
}

async fn read_both(
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
    out: &mut Vec<u8>,
    err: &mut Vec<u8>,
) -> Result<(), OutputTooLong> {
    tokio::try_join!(read_stream(stdout, out), read_stream(stderr, err)).map(drop)
}

async fn read_stream(
    stream: Option<impl AsyncRead + Unpin>,
    buffer: &mut Vec<u8>,
) -> Result<(), OutputTooLong> {
    if let Some(stream) = stream {
        let _ = stream.take(MAX_OUTPUT + 1).read_to_end(buffer).await;
    }
    if buffer.len() as u64 > MAX_OUTPUT {
        return Err(OutputTooLong);
    }
    Ok(())
}

/// The timeout for killed programs at the end of the daemon. Programs that are still alive then hang in the kernel.
const KILLED_TIMEOUT: Duration = Duration::from_secs(3);

/// All running programs. They are ended with the daemon.
#[derive(Debug, Clone)]
pub(crate) struct CliRuns {
    ending: Arc<watch::Sender<bool>>,
}

/// One of the running programs in [`CliRuns`].
pub(super) struct CliRun(watch::Receiver<bool>);

impl Default for CliRuns {
    fn default() -> Self {
        Self {
            ending: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl CliRuns {
    /// Registers a program that is about to be started; `None` if the daemon is ending.
    pub(super) fn begin(&self) -> Option<CliRun> {
        let run = CliRun(self.ending.subscribe());
        // Subscribed before the check, so that no end of the daemon is missed.
        let is_ending = *run.0.borrow();
        (!is_ending).then_some(run)
    }

    /// Ends all programs, and prevents new ones from being started.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        let _ = tokio::time::timeout(KILLED_TIMEOUT, self.ending.closed()).await;
    }
}

impl CliRun {
    /// Waits until the daemon is ending.
    pub(super) async fn ending(&mut self) {
        // Fails if all `CliRuns` were dropped.
        let _ = self.0.wait_for(|ending| *ending).await;
    }
}
