//! `crustlet`: what a kubelet does about deferred mounts (KEP-2857, 3756, 2485, 2317), on one node and without an
//! API server.
//!
//! | room | what is there |
//! |---|---|
//! | `cli`, `settings` | the command line; what asks a running agent |
//! | `admission` | which volumes of a pod are deferred, by a policy |
//! | `claims` | what binds claims to volumes, and makes, grows and destroys those |
//! | `objects` | what people write: pods, claims, volumes, classes, drivers |
//! | `volumes` | what is wanted of volumes, what there is, and the next step from one to the other |
//! | `sources` | directories of manifests: what is wanted |
//! | `events` | what happens, told in words |
//! | `csi` | what a driver is asked, by what it can do |
//! | `plugins` | which drivers there are: those that were named, and those that register |
//! | `runtime_assist` | what a runtime is asked about storage by its own interface |
//! | `rpc` | one call on a unix socket |
//! | `metrics` | what is counted, for Prometheus, and whether it is well |
//! | `watch` | directories that are looked at again when something changes |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod admission;
mod claims;
mod cli;
mod csi;
mod events;
mod metrics;
mod objects;
mod plugins;
mod rpc;
mod runtime_assist;
mod settings;
mod sources;
mod volumes;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};

/// All that the program does; what it returns is the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { socket, command } = Cli::parse();
    match command {
        Command::Serve(_) => ExitCode::SUCCESS,
        Command::Admit(admit) => admit.run(),
        Command::Ask(asked) => cli::ask(asked, &socket),
    }
}

/// The command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}
