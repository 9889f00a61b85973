//! Running the CLI: without a shell, in an environment and a process group of its own, bounded in
//! time and output.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::CliError;
use super::processes::{Processes, Program};
use crate::volumes::Held;

/// What is read of each stream; an answer is some hundred bytes.
const LONGEST: u64 = 64 * 1024;

/// What is left to be read when the program has ended is there already: whoever still holds its
/// streams is killed. So is one that was killed gone, unless the kernel has it.
const AFTERWARDS: Duration = Duration::from_secs(2);

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

/// Runs a program until it has ended, or `limit` has passed, or nobody waits for it any more. The
/// turn is its volume's until it is gone for good: one that hangs in the kernel is the only one.
pub(super) async fn run(
    processes: &Processes,
    program: &Path,
    arguments: &[OsString],
    limit: Duration,
    turn: Option<Held>,
) -> Result<Output, CliError> {
    let failed = |source| CliError::Start {
        program: program.to_owned(),
        source,
    };
    let running = start(processes, program, arguments).map_err(failed)?;
    let (answer, asked) = oneshot::channel();
    tokio::spawn(async move {
        let _turn = turn;
        attend(running, Instant::now() + limit, answer).await;
    });
    match asked.await {
        Ok(Ended::Said(output)) => Ok(output),
        Ok(Ended::Failed(error)) => Err(failed(error)),
        Ok(Ended::Late) | Err(_) => Err(CliError::Timeout {
            program: program.to_owned(),
            after: limit,
        }),
    }
}

/// How a run has ended.
enum Ended {
    Said(Output),
    Failed(io::Error),
    Late,
}

/// What is read of a program.
#[derive(Default)]
struct Streams {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Why it isn't heard to its end.
enum Enough {
    TooLong,
    Late,
}

fn start(processes: &Processes, program: &Path, arguments: &[OsString]) -> io::Result<Program> {
    let mut command = Command::new(program);
    command
        .arg("crust")
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    processes.spawn(&mut command)
}

/// Sees to it that a program ends, and says how to whoever still wants to know.
async fn attend(mut program: Program, deadline: Instant, mut answer: oneshot::Sender<Ended>) {
    let mut streams = Streams::default();
    let heard = tokio::select! {
        heard = timeout_at(deadline, listen(&mut program, &mut streams)) => heard,
        // Nobody waits for it.
        () = answer.closed() => Ok(Err(Enough::Late)),
    };
    program.kill();
    let ended = timeout(AFTERWARDS, program.wait()).await;
    let is_gone = ended.is_ok();
    let ended = match (heard.unwrap_or(Err(Enough::Late)), ended) {
        (Err(Enough::Late), _) | (_, Err(_)) => Ended::Late,
        (_, Ok(Err(error))) => Ended::Failed(error),
        (heard, Ok(Ok(status))) => Ended::Said(Output {
            success: status.success(),
            status: status.to_string(),
            stdout: streams.stdout,
            stderr: streams.stderr,
            too_long: heard.is_err(),
        }),
    };
    // Whoever asked may be gone.
    let _ = answer.send(ended);
    if !is_gone {
        let _ = program.wait().await;
    }
}

/// Reads what a program says until it has ended.
async fn listen(program: &mut Program, streams: &mut Streams) -> Result<(), Enough> {
    let (stdout, stderr) = (program.child.stdout.take(), program.child.stderr.take());
    let read = async {
        tokio::try_join!(
            all_of(stdout, &mut streams.stdout),
            all_of(stderr, &mut streams.stderr)
        )
        .map(drop)
    };
    tokio::pin!(read);
    tokio::select! {
        // It has closed them, or said more than is read.
        read = &mut read => {
            read?;
            let _ = program.wait().await;
            Ok(())
        }
        // What it said is in the pipes, which nobody holds any more.
        _ = program.wait() => timeout(AFTERWARDS, read).await.unwrap_or(Ok(())),
    }
}

async fn all_of(stream: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> Result<(), Enough> {
    if let Some(stream) = stream {
        let _ = stream.take(LONGEST + 1).read_to_end(into).await;
    }
    if into.len() as u64 > LONGEST {
        return Err(Enough::TooLong);
    }
    Ok(())
}
