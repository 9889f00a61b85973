//! runcrust: an OCI runtime wrapper that mounts deferred CSI volumes inside the pod's sandbox
//! (KEP-2857) and hands everything else to runc or crun untouched.
//!
//! argv → [`invocation`] → bundle ([`oci`]) → [`plan`] → [`rewrite`] → exec of the [`delegate`].

// A program's library: who reads its documentation sees the private rooms too.
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod delegate;
mod doctor;
mod explain;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod installer;
mod invocation;
mod matching;
mod node;
mod oci;
mod plan;
mod programs;
mod report;
mod rewrite;
mod role;
mod start;
mod update;
mod users;
mod verbs;

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use crust_state::config::ConfigError;
use crust_state::{Config, Deadline, limits, logging};

use delegate::Delegate;
use invocation::{Command, Flavour, Invocation, Own, Start};
use report::Report;
use start::Job;

/// All that the program does; what it returns is the exit code, unless the delegate took its place.
#[must_use]
pub fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let config = Config::load(argv.first());
    let delegate = find_delegate(&argv, config.as_ref());
    // Without a delegate there is still a caller, who reads the log that the command line names.
    let flavour = delegate.as_ref().map_or(Flavour::Runc, Delegate::flavour);
    let invocation = invocation::parse(flavour, &argv);
    if let Ok(Command::Own(own, at)) = invocation.command {
        // Volumes that are in use need answers even where the delegate is gone.
        return match own {
            Own::Crust => verbs::run(&argv[at + 1..], config),
            Own::Install | Own::Uninstall => installer::run(&argv, at),
        };
    }
    let report = Report::new(flavour, &invocation.globals, bundle_of(&invocation));
    report.tell_of_panics();
    let Err(error) = become_delegate(&argv, invocation, config, delegate);
    report.fatal(&error);
    ExitCode::FAILURE
}

/// runcrust's own subcommands, for manuals and completions; everything else is the delegate's.
#[must_use]
pub fn command() -> clap::Command {
    installer::command().subcommand(verbs::command())
}

/// A mistake in the configuration must keep no container from being stopped: for that its
/// delegate is enough.
fn find_delegate(argv: &[OsString], config: Result<&Config, &ConfigError>) -> Result<Delegate> {
    let configured = match config {
        Ok(config) => config.delegate.clone(),
        Err(_) => Config::load_delegate(argv.first())?,
    };
    Ok(Delegate::find(configured.as_deref())?)
}

/// Prepares what needs it and execs the delegate in this process's place: a fork would lose
/// `LISTEN_PID` and the parent-death signal.
fn become_delegate(
    argv: &[OsString],
    invocation: Invocation,
    config: Result<Config, ConfigError>,
    delegate: Result<Delegate>,
) -> Result<Infallible> {
    // Without it the command line can't be understood: what it means is up to the delegate.
    let delegate = delegate?;
    let start = match invocation.command? {
        Command::Start(start) => start,
        Command::Update(update) => {
            let kept = update::keep_rules(argv, &update, &invocation.globals, config);
            return Ok(delegate.exec(kept.as_deref().unwrap_or(argv))?);
        }
        Command::Own(..) | Command::PassOn => return Ok(delegate.exec(argv)?),
    };
    let config = config?;
    logging::start(config.log.as_deref());
    let _lock = start::prepare(Job {
        start: &start,
        globals: &invocation.globals,
        config: &config,
        flavour: delegate.flavour(),
        argv0: argv.first(),
        deadline: Deadline::after(limits::CREATE),
    })?;
    Ok(delegate.exec(argv)?)
}

fn bundle_of(invocation: &Invocation) -> Option<&std::path::Path> {
    match &invocation.command {
        Ok(Command::Start(Start { bundle, .. })) => Some(bundle),
        _ => None,
    }
}
