//! `crustlet`: kubelet's part in deferred mounts (KEP-2857, 3756, 2485, 2317), on one node and without an API server.
//!
//! | module | contents |
//! |---|---|
//! | `cli`, `settings` | the command line, and the commands that call a running agent |
//! | `server`, `root` | starts and stops the agent, and locks its root directory |
//! | `agent` | the task that reconciles the actual with the desired state |
//! | `api` | the service that the commands call |
//! | `admission` | the policy that decides which volumes of a pod are deferred |
//! | `claims` | binds claims to volumes, and has drivers create, expand and delete volumes |
//! | `operations` | the operations on volumes |
//! | `pods` | the state, the next step and the status of a pod |
//! | `worker` | carries out the steps of pods |
//! | `volumes` | the desired and the actual state of volumes, and the next step of each volume |
//! | `objects` | the objects of manifests: pods, claims, volumes, classes, drivers and Secrets |
//! | `sources` | the directories of manifests |
//! | `cri` | the client of the container runtime |
//! | `csi` | the client of drivers, and their capabilities |
//! | `plugins` | the registration of drivers |
//! | `runtime_assist` | the client of a runtime handler's storage interface (KEP-2857's earlier draft) |
//! | `events` | the events about objects |
//! | `metrics` | the metrics for Prometheus, and the health page |
//! | `watch` | the watch on directories |

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

/// The program's name in logs and errors.
const NAME: &str = "crustlet";

/// Runs the program, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { socket, command } = Cli::parse();
    match command {
        Command::Serve(settings) => {
            crust_serve::process::main(NAME, settings.log_level, server::serve(*settings))
        }
        Command::Admit(admit) => admit.run(),
        Command::Agent(command) => cli::run_agent_command(command, &socket),
    }
}

/// Returns the command line, from which the manual pages and completions are generated.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}
