//! `crust_ops`: the gRPC proxy through which CSI node plugins defer mounts to the container runtime (KEP-2857), with
//! the CRUST interface of the KEP's earlier draft.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod call_error;
mod check;
mod cli;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod node;
mod server;
mod services;
mod settings;
mod staging_limits;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use crust_serve::{Daemon, KnownSockets, log, process};

use cli::attendant::ATTEND;
use node::StagingNode;
use server::DaemonConfig;
use settings::Settings;

/// This daemon's names and the texts that appear in its messages.
static DAEMON: Daemon = Daemon {
    name: "crust_ops",
    method_prefix: "crust.",
    quiet_methods: &["RuntimeGetVolumeStats"],
    streaming_methods: &[],
    descriptors: crust_proto::FILE_DESCRIPTOR_SET,
    busy_hint: "retry later, or raise max_calls",
    sockets: KnownSockets {
        names: &["crust_ops", "crust"],
        setting: "`listen` and `crust_listen` of the configuration",
        unserved_reason: "there are two of them, or `crust_listen` is empty",
    },
};

/// gRPC proxy through which CSI node plugins defer mounts to the container runtime (KEP-2857)
#[derive(Debug, Parser)]
#[command(name = "crust_ops", version)]
struct Cli {
    /// Configuration file; by default the one in /etc/runcrust, if it exists
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and the node, print the results, and exit
    #[arg(long)]
    check: bool,
}

/// Runs the program and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == ATTEND) {
        return cli::attendant::run(arguments);
    }
    let arguments = Cli::parse();
    let is_explicit = arguments.config.is_some();
    let file = arguments
        .config
        .unwrap_or_else(|| crust_state::ops::CONFIG_FILE.into());
    if arguments.check {
        return check::run(&file, is_explicit);
    }
    match configure(file, is_explicit) {
        Ok(configured) => {
            let level = configured.settings.log_level;
            process::main(DAEMON.name, level, server::serve(configured))
        }
        Err(error) => {
            log::fatal(DAEMON.name, &crust_state::error_message(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Returns the command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

fn configure(file: PathBuf, is_explicit: bool) -> Result<DaemonConfig> {
    let settings = Settings::load(&file, is_explicit)?;
    let node = StagingNode::new(settings.runtime_config()?);
    Ok(DaemonConfig {
        file,
        is_explicit,
        settings: Arc::new(settings),
        node,
    })
}
