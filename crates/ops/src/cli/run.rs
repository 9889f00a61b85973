//! Runs the CLI: without a shell, in an environment of its own, bounded in time and output.

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

use super::attendant::{ATTEND, Word};
use super::{CliCall, CliError};

/// The most bytes that are read of each stream. An answer has some hundred.
const LONGEST: u64 = 64 * 1024;

/// How long is waited after the program has ended for the rest of its output, which is in the pipes already, and for
/// killed processes, which are gone unless they hang in the kernel.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// The output of a program.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) success: bool,
    /// The exit status in words.
    pub(super) status: String,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// Whether there was more than is read.
    pub(super) too_long: bool,
}

/// Runs a program until it has ended, or its caller has hung up. Returns `None` after the deadline. The volume's turn
/// is held until the program and all that it has left are gone: only one can hang in the kernel for a volume.
pub(super) async fn run(
    runs: &Runs,
    call: CliCall<'_>,
    deadline: Instant,
    turn: Option<KeyedLockGuard<Digest>>,
) -> Result<Option<Output>, CliError> {
    let program = call.program.to_owned();
    let failed = |source| CliError::Start {
        program: program.clone(),
        source,
    };
    let mut run = runs.begin().ok_or(CliError::Ending)?;
    let mut running = Running::start(call.program, call.arguments).map_err(failed)?;
    let is_left = call.is_left_alone;
    let (mut answer, told) = oneshot::channel();
    tokio::spawn(async move {
        let _turn = turn;
        let ended = tokio::select! {
            ended = running.hear(deadline) => ended,
            () = answer.closed(), if !is_left => Ended::Late,
            () = run.ending() => Ended::Cut,
        };
        let is_gone = running.end().await;
        // Whoever asked may be gone.
        let _ = answer.send(ended);
        if !is_gone {
            tracing::warn!(
                "a runtime-cli, or what it has left, can't be killed: see who is in state D"
            );
            let _ = running.attendant.wait().await;
        }
    });
    match told.await {
        Ok(Ended::Said(output)) => Ok(Some(output)),
        Ok(Ended::Failed(error)) => Err(failed(error)),
        Ok(Ended::Cut) | Err(_) => Err(CliError::Ending),
        Ok(Ended::Late) => Ok(None),
    }
}

/// How a run has ended.
enum Ended {
    Said(Output),
    Failed(io::Error),
    Late,
    /// The daemon ends.
    Cut,
}

/// A program that runs.
struct Running {
    attendant: Child,
    /// The socket to the attendant. Closed, it ends the program.
    word: Option<UnixStream>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// A program that said more than is read.
struct TooLong;

impl Running {
    /// Starts the attendant, which is this program: the other may be on a file system that hangs.
    fn start(program: &Path, arguments: &[OsString]) -> io::Result<Self> {
        let (word, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs.into_std()?);
        rustix::io::ioctl_fionbio(&theirs, false)?;
        let attendant = Command::new("/proc/self/exe")
            .arg0("crust_ops")
            .arg(ATTEND)
            .arg(program)
            .arg("crust")
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        Ok(Self {
            attendant,
            word: Some(word),
            stdout: Vec::new(),
            stderr: Vec::new(),
        })
    }

    /// Reads what the program says until it has ended.
    async fn hear(&mut self, deadline: Instant) -> Ended {
        let read = both(
            self.attendant.stdout.take(),
            self.attendant.stderr.take(),
            &mut self.stdout,
            &mut self.stderr,
        );
        let word = word(self.word.as_mut());
        let heard = async move {
            tokio::pin!(read, word);
            tokio::select! {
                // It has closed them, or said more than is read.
                read = &mut read => match read {
                    Ok(()) => (Ok(()), Some(word.await)),
                    Err(TooLong) => (Err(TooLong), None),
                },
                // What it said is in the pipes, which nobody holds any more.
                word = &mut word => {
                    (timeout(AFTERWARDS, read).await.unwrap_or(Ok(())), Some(word))
                }
            }
        };
        let Ok((read, word)) = timeout_at(deadline, heard).await else {
            return Ended::Late;
        };
        let status = match word {
            Some(Ok(Word::Ended(status))) => Some(status),
            Some(Ok(Word::Failed(error)) | Err(error)) => return Ended::Failed(error),
            None => None,
        };
        Ended::Said(Output {
            success: status.is_some_and(|status| status.success()),
            status: status
                .as_ref()
                .map_or_else(String::new, ExitStatus::to_string),
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
            too_long: read.is_err(),
        })
    }

    /// Has the attendant kill the program and its descendants. Returns whether they ended in time.
    async fn end(&mut self) -> bool {
        self.word = None;
        timeout(AFTERWARDS, self.attendant.wait()).await.is_ok()
    }
}

async fn word(from: Option<&mut UnixStream>) -> io::Result<Word> {
    let mut bytes = [0; Word::LENGTH];
    let from = from.ok_or(io::ErrorKind::BrokenPipe)?;
    from.read_exact(&mut bytes).await?;
    Ok(Word::of_bytes(bytes))
}

async fn both(
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
    out: &mut Vec<u8>,
    err: &mut Vec<u8>,
) -> Result<(), TooLong> {
    tokio::try_join!(all_of(stdout, out), all_of(stderr, err)).map(drop)
}

async fn all_of(stream: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> Result<(), TooLong> {
    if let Some(stream) = stream {
        let _ = stream.take(LONGEST + 1).read_to_end(into).await;
    }
    if into.len() as u64 > LONGEST {
        return Err(TooLong);
    }
    Ok(())
}

/// How long killed programs are waited for. Later they are gone, unless they hang in the kernel.
const KILLED_TIMEOUT: Duration = Duration::from_secs(3);

/// The programs that run, which are all ended with the daemon.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    ending: Arc<watch::Sender<bool>>,
}

/// A program that runs, among [`Runs`].
pub(super) struct Run(watch::Receiver<bool>);

impl Default for Runs {
    fn default() -> Self {
        Self {
            ending: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl Runs {
    /// Notes that a program begins. `None` once the daemon is ending.
    pub(super) fn begin(&self) -> Option<Run> {
        let run = Run(self.ending.subscribe());
        // Subscribed before the check, so that an end that comes between is seen.
        let is_ending = *run.0.borrow();
        (!is_ending).then_some(run)
    }

    /// Ends all programs, and lets none begin.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        let _ = tokio::time::timeout(KILLED_TIMEOUT, self.ending.closed()).await;
    }
}

impl Run {
    /// Returns when the program has to end.
    pub(super) async fn ending(&mut self) {
        // Fails once the daemon has dropped `Runs`.
        let _ = self.0.wait_for(|ending| *ending).await;
    }
}
