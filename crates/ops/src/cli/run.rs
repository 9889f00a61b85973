//! Running the CLI: without a shell, in an environment and a process group of its own, bounded in
//! time and output.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::{Instant, timeout_at};

use super::CliError;

/// What is read of each stream; an answer is some hundred bytes.
const LONGEST: u64 = 64 * 1024;

/// What is left to be read when the program has ended is there already: whoever still holds its
/// streams is killed.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// What a program said.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) success: bool,
    /// For people.
    pub(super) status: String,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// More than is read.
    pub(super) too_long: bool,
}

/// The program's process group, killed when this goes: also where the caller has hung up.
///
/// Made before the program is waited for, and gone before that: until then the pid, and so the
/// group's number, can't be another one's.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // ESRCH is what is wanted.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

pub(super) async fn run(
    program: &Path,
    arguments: &[OsString],
    timeout: Duration,
) -> Result<Output, CliError> {
    let failed = |source| CliError::Start {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .arg("crust")
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let pid = pid.ok_or_else(|| failed(io::Error::from(io::ErrorKind::NotFound)))?;
    let group = Group(pid);
    // On a thread, for it has to stay a zombie: reaped, its group couldn't be killed for sure.
    let mut ended = tokio::task::spawn_blocking(move || {
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )
    });
    let deadline = Instant::now() + timeout;
    let read = both(child.stdout.take(), child.stderr.take());
    tokio::pin!(read);
    let said = async {
        tokio::select! {
            // It has ended; what it said is in the pipes.
            _ = &mut ended => None,
            // It has closed them, or said more than is read.
            streams = &mut read => Some(streams),
        }
    };
    let said = timeout_at(deadline, said).await;
    let too_late = || CliError::Timeout {
        program: program.to_owned(),
        after: timeout,
    };
    let read = match said {
        Err(_) => {
            drop(group);
            let _ = child.wait().await;
            return Err(too_late());
        }
        Ok(Some(Ok(streams))) => {
            let ended = timeout_at(deadline, &mut ended).await;
            drop(group);
            if ended.is_err() {
                let _ = child.wait().await;
                return Err(too_late());
            }
            Ok(streams)
        }
        Ok(Some(Err(TooLong))) => {
            drop(group);
            Err(TooLong)
        }
        Ok(None) => {
            // Whoever else of the group holds the pipes is killed; who has left it is waited for
            // no longer than a moment.
            drop(group);
            let streams = tokio::time::timeout(AFTERWARDS, &mut read).await;
            streams.unwrap_or_else(|_| Ok(Streams::default()))
        }
    };
    let status = child.wait().await.map_err(failed)?;
    let too_long = read.is_err();
    let [stdout, stderr] = read.unwrap_or_default();
    Ok(Output {
        success: status.success(),
        status: status.to_string(),
        too_long,
        stdout,
        stderr,
    })
}

/// More than is read.
struct TooLong;

type Streams = [Vec<u8>; 2];

async fn both(
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
) -> Result<Streams, TooLong> {
    let (stdout, stderr) = tokio::try_join!(all_of(stdout), all_of(stderr))?;
    Ok([stdout, stderr])
}

async fn all_of(stream: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, TooLong> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let _ = stream.take(LONGEST + 1).read_to_end(&mut bytes).await;
    }
    if bytes.len() as u64 > LONGEST {
        return Err(TooLong);
    }
    Ok(bytes)
}
