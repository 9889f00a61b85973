//! The runtime's CLI (KEP-2857: `runtime-cli`), which answers for volumes in use.

mod answer;
pub(crate) mod attendant;
#[cfg(feature = "fuzzing")]
pub(crate) mod properties;
mod run;
mod trust;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use answer::{Capabilities, Capacity, Stats, Unit};
use crust_serve::KeyedLockGuard;
use crust_state::Digest;
pub(crate) use run::Runs;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
pub(crate) use trust::{Untrusted, check};

/// The programs that may be run, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The paths of the programs.
    pub(crate) allowed: Vec<PathBuf>,
    /// The time after which a program's process group is killed.
    pub(crate) timeout: Duration,
}

/// An error of the CLI.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Whoever could change it could have root run anything.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// It can't be run.
    #[error(
        "exec {}: {source}; hint: `runtime` in the configuration of crust_ops, or `runtime-cli` in \
         the volume's entry, names it", program.display()
    )]
    Start {
        program: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// It took too long, and was killed.
    #[error(
        "{} gave no answer within {} s and was killed; hint: a device that hangs shows processes in \
         state D", program.display(), after.as_secs()
    )]
    Timeout {
        program: PathBuf,
        /// The limit.
        after: Duration,
    },
    /// The daemon ends before the program does.
    #[error("crust_ops is about to end; hint: try again, once it has been started again")]
    Ending,
    /// The program answered with an error.
    #[error("{message}")]
    Refused {
        /// A gRPC code.
        code: tonic::Code,
        /// Its sentence.
        message: String,
    },
    /// It answered in no known form.
    #[error(
        "{}: {what}; hint: is it runcrust? `runtime-cli` in the volume's entry names it",
        program.display()
    )]
    Answer {
        program: PathBuf,
        /// The flaw of the answer.
        what: String,
    },
}

/// A call of the CLI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CliCall<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    /// Whether the call changes something: it then comes to its end also when its caller hangs up.
    pub(crate) is_left_alone: bool,
}

impl Policy {
    /// Runs `<program> crust <arguments>` in a volume's turn, and reads its answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        runs: &Runs,
        call: CliCall<'_>,
        turn: Option<KeyedLockGuard<Digest>>,
    ) -> Result<T, CliError> {
        let late = || CliError::Timeout {
            program: call.program.to_owned(),
            after: self.timeout,
        };
        let began = Instant::now();
        // On a thread of its own, and with the turn: a file system that hangs holds up this one thread.
        let trusted = {
            let (program, allowed) = (call.program.to_owned(), self.allowed.clone());
            spawn_blocking(move || (trust::check(&program, &allowed), turn))
        };
        let trusted = timeout(self.timeout, trusted).await.map_err(|_| late())?;
        let (trusted, turn) = trusted.map_err(|_| CliError::Ending)?;
        trusted?;
        let deadline = began + self.timeout;
        let output = run::run(runs, call, deadline, turn).await?;
        let output = output.ok_or_else(late)?;
        answer::read(call.program, &output)
    }
}
