//! Calls the runtime's CLI (KEP-2857: `runtime-cli`), which reports on volumes in use and changes them.

mod answer;
pub(crate) mod attendant;
#[cfg(feature = "fuzzing")]
pub(crate) mod properties;
mod run;
mod trust;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use answer::{Capabilities, Capacity, Unit, VolumeStats};
use crust_serve::KeyedLockGuard;
use crust_state::Digest;
pub(crate) use run::CliRuns;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
pub(crate) use trust::{Untrusted, check};

/// The programs that may be run as `runtime-cli`, and their timeout.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The paths of the programs.
    pub(crate) allowed: Vec<PathBuf>,
    /// The time after which a program's process group is killed.
    pub(crate) timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The program isn't trusted, because another user could have root execute any code through it.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The program can't be executed.
    #[error(
        "exec {}: {source}; hint: check `runtime` in the configuration of crust_ops, or `runtime-cli` in \
         the volume's entry", program.display()
    )]
    Start {
        program: PathBuf,
        source: std::io::Error,
    },
    /// The program exceeded its timeout and was killed.
    #[error(
        "{} didn't answer within {} s and was killed; hint: look for processes in state D, which wait for a device \
         that hangs", program.display(), after.as_secs()
    )]
    Timeout { program: PathBuf, after: Duration },
    #[error("crust_ops is shutting down; hint: retry once it has been restarted")]
    Ending,
    /// The program answered with an error.
    #[error("{message}")]
    Refused { code: tonic::Code, message: String },
    /// The program's output isn't a valid answer.
    #[error(
        "{}: {problem}; hint: check that `runtime-cli` in the volume's entry names runcrust",
        program.display()
    )]
    InvalidAnswer { program: PathBuf, problem: String },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CliCall<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    /// Whether the program runs to its end even if the caller hangs up, because it changes something.
    pub(crate) runs_to_completion: bool,
}

impl Policy {
    /// Runs `<program> crust <arguments>` and parses its answer. `volume_lock` is held until the program has ended.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        runs: &CliRuns,
        call: CliCall<'_>,
        volume_lock: Option<KeyedLockGuard<Digest>>,
    ) -> Result<T, CliError> {
        let timed_out = || CliError::Timeout {
            program: call.program.to_owned(),
            after: self.timeout,
        };
        let began = Instant::now();
        // The program may be on a file system that hangs. The thread holds the lock until it ends, so that at most one
        // thread hangs for each volume.
        let trusted = {
            let (program, allowed) = (call.program.to_owned(), self.allowed.clone());
            spawn_blocking(move || (trust::check(&program, &allowed), volume_lock))
        };
        let trusted = timeout(self.timeout, trusted)
            .await
            .map_err(|_| timed_out())?;
        let (trusted, volume_lock) = trusted.map_err(|_| CliError::Ending)?;
        trusted?;
        let deadline = began + self.timeout;
        let output = run::run(runs, call, deadline, volume_lock).await?;
        let output = output.ok_or_else(timed_out)?;
        answer::read(call.program, &output)
    }
}
