//! `crustlet`: what a kubelet does about deferred mounts (KEP-2857, 3756, 2485, 2317), on one node and without an
//! API server.
//!
//! | room | what is there |
//! |---|---|
//! | `cli`, `settings` | the command line; what asks a running agent |
//! | `server`, `root` | a running agent, from its root directory to its end |
//! | `agent` | the one task that knows what is wanted and what there is |
//! | `api` | what a running agent is asked |
//! | `admission` | which volumes of a pod are deferred, by a policy |
//! | `claims` | what binds claims to volumes, and makes, grows and destroys those |
//! | `operations` | what is done to volumes |
//! | `pods` | what there is of pods, and the next step of each |
//! | `worker` | that step, carried out |
//! | `volumes` | what is wanted of volumes, what there is, and the next step from one to the other |
//! | `objects` | what people write: pods, claims, volumes, classes, drivers |
//! | `sources` | directories of manifests: what is wanted |
//! | `cri` | the container runtime, asked |
//! | `csi` | what a driver is asked, by what it can do |
//! | `plugins` | drivers that are there |
//! | `runtime_assist` | a runtime handler, asked about storage (KEP-2857's earlier draft) |
//! | `events` | what happens, told in words |
//! | `metrics` | what is counted, for Prometheus, and whether it is well |
//! | `watch` | directories that are looked at again when something changes |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod admission;
mod agent;
mod api;
mod claims;
mod cli;
mod cri;
mod csi;
mod events;
mod metrics;
mod objects;
mod operations;
mod plugins;
mod pods;
mod root;
mod runtime_assist;
mod server;
mod settings;
mod sources;
mod volumes;
mod watch;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};

/// What its users know it by.
const NAME: &str = "crustlet";

/// All that the program does; what it returns is the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { socket, command } = Cli::parse();
    match command {
        Command::Serve(settings) => {
            crust_serve::process::main(NAME, settings.log_level, server::serve(*settings))
        }
        Command::Admit(admit) => admit.run(),
        Command::Ask(asked) => cli::ask(asked, &socket),
    }
}

/// The command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}
