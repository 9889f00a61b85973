//! The runtime's CLI (KEP-2857: `runtime-cli`), which answers for volumes in use.

mod answer;
mod processes;
mod run;
mod trust;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use answer::{Capabilities, Capacity, Stats, Unit};
pub(crate) use processes::Processes;
use serde::de::DeserializeOwned;
pub(crate) use trust::{Untrusted, check};

use crate::volumes::Held;

/// What of it may be run, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The only programs.
    pub(crate) allowed: Vec<PathBuf>,
    /// After that its process group is killed.
    pub(crate) timeout: Duration,
}

/// Why there is no answer.
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
        /// The program.
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
        /// The program.
        program: PathBuf,
        /// The limit.
        after: Duration,
    },
    /// It said why not.
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
        /// The program.
        program: PathBuf,
        /// What is wrong with the answer.
        what: String,
    },
}

impl Policy {
    /// Runs `<program> crust <arguments>` in a volume's turn, and reads its answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        processes: &Processes,
        program: &Path,
        arguments: &[OsString],
        turn: Option<Held>,
    ) -> Result<T, CliError> {
        trust::check(program, &self.allowed)?;
        let output = run::run(processes, program, arguments, self.timeout, turn).await?;
        answer::read(program, &output)
    }
}
