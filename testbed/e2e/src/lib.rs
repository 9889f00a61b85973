//! End-to-end tests of deferred volumes on a Kubernetes cluster. They run on any cluster where a handler that defers, its
//! `RuntimeClass`, `crust_ops` and a `StorageClass` that defers are installed, and can install them.
//!
//! | module | what is in it |
//! |---|---|
//! | `arguments` | the command line |
//! | `runner` | runs the scenarios one after another, each in a namespace of its own, and reports |
//! | `report` | the results, as text and as JSON |
//! | `cluster` | the API server: objects, logs, programs in containers |
//! | `manifest` | the objects of a scenario, adapted to the cluster's classes and images |
//! | `node` | looks at a node, and the disruptions |
//! | `test` | what a scenario does: create objects, wait, look, with a line of output for each step |
//! | `wait` | waiting for a state of the cluster, with a timeout |
//! | `scenarios` | the scenarios |
//! | `install` | installs the manifests of `deploy/kubernetes`, upgrades and removes them |

#![forbid(unsafe_code)]

mod arguments;
mod cluster;
mod install;
mod manifest;
mod node;
mod report;
mod runner;
mod scenarios;
mod test;
mod wait;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::Arguments;

/// Returns the command line, for the manual.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the program. The exit code is 0 if no scenario failed, 1 if one did, and 2 if the tests could not be run.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ran = match runtime {
        Ok(runtime) => runtime.block_on(runner::run(&arguments)),
        Err(error) => Err(anyhow::Error::new(error).context("start")),
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("crust-e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}
