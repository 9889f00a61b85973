//! `crust_ops`: the gRPC proxy by which CSI node plugins defer mounts to the container runtime
//! (KEP-2857), and the CRUST interface of its earlier draft.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod call;
mod check;
mod cli;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod listen;
mod log;
mod metrics;
mod node;
mod refusal;
mod server;
mod services;
mod settings;
mod status;
mod volumes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Parser};
use rustix::process::{Resource, getrlimit, setrlimit};

use cli::attendant::ATTEND;
use node::Node;
use server::Configured;
use settings::Settings;

/// The gRPC proxy by which CSI node plugins defer mounts to the container runtime (KEP-2857)
#[derive(Debug, Parser)]
#[command(name = "crust_ops", version)]
struct Arguments {
    /// The configuration; without it, that in /etc/runcrust if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Look at the configuration and the node, say what is wrong, and end
    #[arg(long)]
    check: bool,
}

/// All that the program does; what it returns is the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == ATTEND) {
        return cli::attendant::run(arguments);
    }
    let arguments = Arguments::parse();
    let named = arguments.config.is_some();
    let file = arguments
        .config
        .unwrap_or_else(|| crust_state::ops::CONFIG.into());
    if arguments.check {
        return check::run(&file, named);
    }
    match run(file, named) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::fatal(&crust_state::sentence(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// The command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

fn run(file: PathBuf, named: bool) -> Result<()> {
    let settings = Settings::load(&file, named)?;
    log::start(settings.log_level);
    raise_descriptors();
    let node = Node::new(settings.runtimes()?);
    let configured = Configured {
        file,
        named,
        settings: Arc::new(settings),
        node,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("tokio")?;
    let served = runtime.block_on(server::serve(configured));
    // Threads that wait for a device that hangs would be waited for as long.
    runtime.shutdown_background();
    served
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
